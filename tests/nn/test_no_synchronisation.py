"""A training step never makes the host wait for the device, whatever layers it is made of."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.config import LoadingConfig, ModelConfig, RegimeConfig, TrainConfig
from skewconv.models import LipConvnet
from skewconv.models.parts import ACTIVATIONS, CONVOLUTIONS
from skewconv.nn import bcop, linear, matrix_functions
from skewconv.nn.power_iteration import TrackedNorm
from skewconv.train.build import DataFacts, build_model
from skewconv.train.data import Augmentation, Batches, Split
from skewconv.train.step import Stepper, loss_of
from tests.nn.synchronisation import watching, watching_copies

MODELS = [
    *({"conv": name} for name in CONVOLUTIONS if name != "standard"),
    *({"activation": name} for name in ACTIVATIONS),
    {"padding_mode": "circular"},
    {"head": "normalized"},
    {"conv_options": {"norm": "tracked"}},
]


def step(model: LipConvnet, x: Tensor, labels: Tensor) -> None:
    loss_of(model(x), labels, RegimeConfig()).backward()


@pytest.mark.parametrize("options", MODELS, ids=lambda options: "-".join(map(str, options.values())))
def test_a_training_step_does_not_wait_for_the_device(options, monkeypatch):
    # The way of an accelerator.
    for module in (bcop, linear, matrix_functions):
        monkeypatch.setattr(module, "values_at_hand", lambda device: False)
    torch.manual_seed(0)
    model = LipConvnet(5, in_channels=1, input_size=8, width=2, **options).train()
    x, labels = torch.rand(4, 1, 8, 8), torch.randint(10, (4,))
    step(model, x, labels)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    for module in model.modules():
        if isinstance(module, TrackedNorm):
            module.passes = 51  # one step in fifty waits for the norm
    with watching(monkeypatch) as found:
        step(model, x, labels)
    assert found == []


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
    *(ModelConfig(width=2, conv=conv, head="conv") for conv in ("soc", "bcop", "cayley")),
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
    ids=lambda value: value if isinstance(value, str) else f"{value.arch}-{value.conv}-{value.resnet_activation}",
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


def test_the_watch_sees_what_it_is_for(monkeypatch):
    x = torch.rand(3)
    with watching(monkeypatch) as found:
        x.tolist()
        x[x > 0.5]
        if x.sum() > 0:
            F.relu(x)
    assert [line.split()[0] for line in found if not line.startswith("_local")] == ["tolist", "index", "__bool__"]
