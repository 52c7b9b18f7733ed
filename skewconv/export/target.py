"""Where a network can be exported to: one value a target, which writes files and runs what it wrote."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from skewconv.export.plain_layers import Network
from skewconv.nn.primitives import Form

#: images (n, *shape) in float32 -> logits (n, classes), and radii (n,) if the file has them
Runner: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class FileOptions:
    """How the file is written: the ONNX opset, and whether weights that float16 can hold are stored so."""

    opset: int
    half: bool


class Target(ABC):
    """A kind of file. A new one is a file with a subclass, and a line in :data:`skewconv.export.TARGETS`."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    #: forms that a layer takes here before its fastest
    prefer: ClassVar[tuple[Form, ...]] = ()

    @abstractmethod
    def check(self, options: FileOptions) -> None:
        """Refuse what cannot work before anything is computed: a package that is missing, an opset that is too old."""

    @abstractmethod
    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """Write the network; every file that was written, each beginning with the name of ``path``."""

    @abstractmethod
    def runner(self, path: Path) -> Runner:
        """Read a file back, and run it as a stranger would."""

    @abstractmethod
    def metadata(self, path: Path) -> dict[str, Any]:
        """What a file says of itself."""
