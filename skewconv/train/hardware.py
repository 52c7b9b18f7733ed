"""Where a run computes: one device, many, or many machines, all through Lightning Fabric."""

import atexit
import logging
import os
from dataclasses import dataclass
from typing import Any, Literal

import torch

from skewconv.config import TrainConfig
from skewconv.errors import ArgumentError
from skewconv.train.data.errors import optional


@dataclass(frozen=True)
class Hardware:
    """Devices and processes. They change how fast a run is, and its result by rounding only."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """The kind of device; auto is a GPU if there is one."""
    devices: int = 1
    """Processes on this machine, a device each; under torchrun its number is taken."""
    nodes: int = 1
    """Machines; under torchrun its number is taken."""

    def __post_init__(self) -> None:
        for name in ("devices", "nodes"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}: it must be at least 1")
        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not available.get(self.device, True):
            raise ArgumentError(f"device is {self.device!r}, but torch sees none here: use --device cpu")

    def fabric(self, config: TrainConfig) -> Any:
        """Lightning Fabric, with its processes started."""
        module = optional("lightning_fabric", "lightning-fabric")
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        devices, nodes = self.devices, self.nodes
        if "TORCHELASTIC_RUN_ID" in os.environ:
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = int(os.environ["WORLD_SIZE"]) // devices
        if config.loading.batch_size % (devices * nodes):
            raise ArgumentError(
                f"batch_size is {config.loading.batch_size} for {devices * nodes} processes: "
                "it must be a multiple of their number"
            )
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            _join_after_restart("nccl" if self.kind() == "cuda" else "gloo")
        fabric = module.Fabric(
            accelerator=self.kind(),
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if devices * nodes > 1 else "auto",
            precision=config.precision,
        )
        fabric.launch()
        # Fabric leaves a group of gloo to the end of the interpreter, where its threads may abort.
        atexit.register(_leave_group)
        if fabric.device.type == "cuda":
            # Continuing bit for bit needs kernels that repeat themselves.
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False
        return fabric

    def kind(self) -> str:
        """The device that auto stands for."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def _leave_group() -> None:
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _join_after_restart(backend: str) -> None:
    """Meet the other processes in a corner of torchrun's store of our own.

    The store outlives the workers (torch 2.13), and with it the addresses of those that died, which a restarted worker
    may find before its peers have written theirs. Fabric takes the group as it is.
    """
    distributed: Any = torch.distributed
    if not distributed.is_initialized():
        store, rank, size = next(distributed.rendezvous("env://"))
        own = distributed.PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        distributed.init_process_group(backend, store=own, rank=rank, world_size=size)
