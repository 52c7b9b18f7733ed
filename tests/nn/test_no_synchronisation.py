"""A training step never makes the host wait for the device, whatever layers it is made of."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from skewconv.config import LoadingConfig, ModelConfig, RegimeConfig, TrainConfig
from skewconv.models.parts import ACTIVATIONS, CONVOLUTIONS
from skewconv.train.checkpoint import DataFacts, build_model
from skewconv.train.data import Augmentation, Batches, Split
from skewconv.train.step import Stepper
from tests.nn.synchronisation import watching_copies


class MetaFabric:
    """One process on the meta device: its tensors have no values, so whoever asks for one gets an error."""

    world_size, global_rank, device = 1, 0, torch.device("meta")

    def setup(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return model, optimizer

    def no_backward_sync(self, model: Any, *, enabled: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()


FACTS = DataFacts("digits", "", tuple("0123456789"), (3, 8, 8), (0.5,) * 3, (0.25,) * 3, 12, 12)
SPLIT = Split(np.zeros((8, 3, 8, 8), np.uint8), np.arange(8))
RUNS = [
    *(ModelConfig(width=2, conv=conv) for conv in CONVOLUTIONS if conv != "standard"),
    *(ModelConfig(width=2, activation=activation) for activation in ACTIVATIONS),
    ModelConfig(width=2, head="normalized"),
    ModelConfig(width=2, head="conv", padding_mode="circular"),
    ModelConfig(arch="resnet-18", width=2, conv="soc"),
]
ATTACKED = [
    *(ModelConfig(arch="resnet-18", width=2, conv=conv) for conv in ("standard", "soc", "bcop", "cayley")),
    *(ModelConfig(arch="resnet-18", width=2, conv="standard", resnet_activation=name) for name in ("swish", "maxmin")),
]


@pytest.mark.parametrize(
    ("model", "regime"),
    [*((run, "provable" if run.arch == "lipconvnet" else "standard") for run in RUNS)]
    + [(run, "adversarial") for run in ATTACKED],
    ids=lambda value: value if isinstance(value, str) else f"{value.arch}-{value.conv}-{value.head}",
)
def test_whole_steps_with_crops_flips_and_attacks_wait_for_no_value_and_no_copy(model, regime, monkeypatch):
    config = TrainConfig(model=model, regime=RegimeConfig(regime=regime), loading=LoadingConfig(batch_size=4))
    with torch.device("meta"):
        network = build_model(config, FACTS)
    fabric = MetaFabric()
    stepper = Stepper(config, fabric, network.to("meta"))
    batches = Batches(SPLIT, 4, seed=0, augment=Augmentation(padding=2), device=fabric.device)
    with watching_copies(monkeypatch) as found:
        for step, (images, labels) in enumerate(batches):
            stepper.step(images, labels, done=0.0, epoch=0, step=step)
            if step == 0:
                # Tables of waves are copied once, and kept.
                found.clear()
    assert found == []


def test_the_watch_sees_copies_that_block(monkeypatch):
    with watching_copies(monkeypatch) as found:
        x = torch.rand(3)
        x.to("meta")
        x.pin_memory().to("meta")
        x.to("meta", non_blocking=True)
        assert len(found) == 3
        x.pin_memory().to("meta", non_blocking=True)
    assert len(found) == 3
