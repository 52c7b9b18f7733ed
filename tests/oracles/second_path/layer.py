"""What the second path knows of a layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Layer:
    """A map in float64 and a bound of its Lipschitz constant; ``matrix`` if it is linear with one."""

    run: Callable[[Tensor], Tensor]
    lipschitz: float
    matrix: Any = None
