"""The environment of a run, which changes none of its results: devices and processes, files and logs.

Nothing here needs torch before a run begins. Devices and processes are those of Lightning Fabric.
"""

import atexit
import csv
import ctypes
import io
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skewconv.choices import DeviceName
from skewconv.config import TrainConfig, require, require_at_least, to_dict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.extras import optional
from skewconv.records import atomic_write
from skewconv.train.presets import CONFIG

FILE = "checkpoint.safetensors"
RECORD = "record.json"
#: written by skewconv audit
AUDIT = "audit.json"
#: written by skewconv certify
CERTIFICATES = "certificates.json"
#: the networks that come with the package
SHIPPED = Path(__file__).parents[1] / "shipped"
WEIGHTS_SUFFIX = ".safetensors"
COLUMNS = ("step", "epoch", "seconds", "lr", "loss", "accuracy", "images_per_second")
CSV_FILE = "log.csv"
# Of malloc.h: the largest free memory that is kept at the end of the heap, and the number of blocks outside of it.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@dataclass(frozen=True)
class Hardware:
    """Devices and processes. They change the speed of a run, and its result by rounding only."""

    device: DeviceName = "auto"
    """Kind of device (auto: a GPU if there is one)."""
    devices: int = 1
    """Number of processes on this machine, one for each device (torchrun sets it)."""
    nodes: int = 1
    """Number of machines (torchrun sets it)."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "devices", "nodes")
        if self.device != "auto":
            self.kind()
        if "TORCHELASTIC_RUN_ID" in os.environ:
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
            for name, number in (("devices", devices), ("nodes", int(os.environ["WORLD_SIZE"]) // devices)):
                require(self, name, getattr(self, name) in (1, number), f"{number} or left out under this torchrun")
                object.__setattr__(self, name, number)

    @property
    def processes(self) -> int:
        return self.devices * self.nodes

    def fabric(self, config: TrainConfig, *, trains: bool = True) -> Any:
        import torch

        module = optional("lightning_fabric", "lightning-fabric")
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        if trains and config.loading.batch_size:
            self._check_training(config)
        fabric = module.Fabric(
            accelerator=self.kind(),
            devices=self.devices,
            num_nodes=self.nodes,
            strategy="ddp" if self.processes > 1 else "auto",
            precision=config.precision,
        )
        fabric.launch()
        # Fabric leaves a group of gloo to the end of the interpreter, where its threads may abort.
        atexit.register(_leave_group)
        if fabric.device.type == "cuda":
            # Resuming bit for bit needs kernels that repeat themselves.
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False
        return fabric

    def kind(self) -> str:
        return device_kind(self.device)

    def _check_training(self, config: TrainConfig) -> None:
        rule = f"a multiple of the number of processes, which is {self.processes}"
        require(config.loading, "batch_size", config.loading.batch_size % self.processes == 0, rule)
        # Fabric would take bf16 instead, and the record would not say so.
        good = config.precision != "16-mixed" or self.kind() != "cpu"
        require(config, "precision", good, "32-true or bf16-mixed on the CPU")


def device_kind(device: DeviceName) -> str:
    if device == "cpu":
        return device
    import torch

    modules: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.backends.mps}
    available = [kind for kind, module in modules.items() if module.is_available()]
    if device == "auto":
        return next(iter(available), "cpu")
    if device not in available:
        raise ArgumentError(f"--device is {device!r}, but torch sees none here: use --device cpu")
    return device


def emulation_note(config: TrainConfig, device: str) -> str:
    """Advice where this processor has no instructions for the arithmetic of a run; empty elsewhere."""
    import torch

    if config.precision != "bf16-mixed" or device != "cpu" or not torch.backends.mkldnn.is_available():
        return ""
    known = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "" if known else "bfloat16 is emulated on this processor: --precision 32-true is several times as fast"


def keep_freed_memory() -> None:
    """Keep freed memory, with glibc: else pages of large blocks are cleared again, a twentieth of a small step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _leave_group() -> None:
    import torch

    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


class CheckpointError(SkewconvError):
    """A file that is no checkpoint of this library, is damaged, or does not fit."""


def existing_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint of a run's folder, or the file itself; a name that is no path may be a network of the package."""
    place = Path(path).expanduser()
    if not place.exists() and os.fspath(path) in shipped_names():
        return SHIPPED / f"{os.fspath(path)}{WEIGHTS_SUFFIX}"
    if place.is_dir():
        if not (place / FILE).exists():
            raise CheckpointError(f"{path} holds no {FILE}: it is not the folder of a run; train one with --out {path}")
        return place / FILE
    if not place.exists():
        raise CheckpointError(f"{path} does not exist: give the folder of a run, or its {FILE}")
    return place


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob(f"*{WEIGHTS_SUFFIX}"))


def is_shipped(checkpoint: Path) -> bool:
    """True for a network of the package, whose folder is not written to."""
    return checkpoint.parent == SHIPPED


def record_beside(weights: Path) -> Path:
    return weights.with_suffix(".json")


def certificates_of(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.stem}-certificates.json" if is_shipped(checkpoint) else CERTIFICATES)


def results_folder(checkpoint: Path, out: Path | None) -> Path:
    """The folder a command writes to: `out`, created if need be, or that of the run."""
    if out is None and is_shipped(checkpoint):
        raise ArgumentError(f"{checkpoint.stem} comes with the package: give --out, a folder for the results")
    return make_folder(out or checkpoint.parent)


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_config(folder: Path, config: TrainConfig) -> None:
    atomic_write(folder / CONFIG, (json.dumps(to_dict(config), indent=2) + "\n").encode())


class Logs:
    """log.csv from `step` on, of a split; later rows, of a process that was killed, are removed."""

    def __init__(self, folder: Path, step: int, split: str = "test", radii: Sequence[str] = ()) -> None:
        self.path, self._split = folder / CSV_FILE, split
        # The first radius is the one that is shown on the way, and has the plain name.
        first = radii[:1] and (f"{split}_certified",)
        others = tuple(f"{split}_certified_{name}" for name in radii[1:])
        self.columns = (*COLUMNS, f"{split}_clean", *first, *others)
        text = io.StringIO()
        rows = csv.DictWriter(text, self.columns, extrasaction="ignore")
        rows.writeheader()
        rows.writerows(_texts(row) for row in read_log(self.path) if row["step"] <= step)
        atomic_write(self.path, text.getvalue().encode())
        self._file = open(self.path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        self._rows = csv.DictWriter(self._file, self.columns)

    def write(
        self, row: dict[str, float], clean: float | None = None, certified: Mapping[str, float] | None = None
    ) -> None:
        """One row, with the accuracies of an evaluation if there was one; columns not given stay empty."""
        if clean is not None:
            shares = dict(zip(self.columns[len(COLUMNS) + 1 :], (certified or {}).values(), strict=False))
            row = {**row, f"{self._split}_clean": clean, **shares}
        self._rows.writerow(_texts(row))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows of log.csv with their finite numbers; a missing file and rows that were cut off are left out."""
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            # Python 3.10 refuses a file for one such character.
            rows = [_numbers(row) for row in csv.DictReader(line for line in file if "\0" not in line)]
    except OSError:
        return []
    return [row for row in rows if "step" in row and "epoch" in row]


def _texts(row: Mapping[str, float]) -> dict[str, str]:
    return {name: str(int(value)) if float(value).is_integer() else f"{value:.6g}" for name, value in row.items()}


def _numbers(row: dict[str, str | None]) -> dict[str, float]:
    found = {}
    for name, text in row.items():
        try:
            value = float(text or "")
        except (TypeError, ValueError):
            continue
        if name and math.isfinite(value):
            found[name] = value
    return found
