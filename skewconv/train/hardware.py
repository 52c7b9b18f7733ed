"""Devices, processes and machines, through Lightning Fabric."""

import atexit
import ctypes
import logging
import os
from dataclasses import dataclass
from typing import Any

from skewconv.choices import DeviceName
from skewconv.config import TrainConfig, require, require_at_least
from skewconv.errors import ArgumentError
from skewconv.extras import optional

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
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            _join_after_restart("nccl" if self.kind() == "cuda" else "gloo")
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
        count, (share, rest) = self.processes, divmod(config.loading.batch_size, self.processes)
        require(config.loading, "batch_size", rest == 0, f"a multiple of the number of processes, which is {count}")
        rule = f"at most {share}, the images of a batch that fall to each of {count} processes"
        require(config.optim, "accumulate", config.optim.accumulate <= share, rule)
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


def _join_after_restart(backend: str) -> None:
    """Meet the other processes under a prefix of our own in torchrun's store.

    The store outlives the workers (torch 2.13), and with it the addresses of those that died, which a restarted worker
    may find before its peers have written theirs. Fabric takes the group as it is.
    """
    import torch

    distributed: Any = torch.distributed
    if not distributed.is_initialized():
        store, rank, size = next(distributed.rendezvous("env://"))
        own = distributed.PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        distributed.init_process_group(backend, store=own, rank=rank, world_size=size)
