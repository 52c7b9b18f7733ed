"""A training step never makes the host wait for the device, whatever layers it is made of."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.config import RegimeConfig
from skewconv.models import LipConvnet
from skewconv.models.parts import ACTIVATIONS, CONVOLUTIONS
from skewconv.nn import bcop_factors, linear, matrix_inverse
from skewconv.train.losses import loss_of
from tests.nn.synchronisation import watching

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
    for module in (bcop_factors, linear, matrix_inverse):
        monkeypatch.setattr(module, "values_at_hand", lambda device: False)
    torch.manual_seed(0)
    model = LipConvnet(5, in_channels=1, input_size=8, width=2, **options).train()
    x, labels = torch.rand(4, 1, 8, 8), torch.randint(10, (4,))
    step(model, x, labels)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    with watching(monkeypatch) as found:
        step(model, x, labels)
    assert found == []


def test_the_watch_sees_what_it_is_for(monkeypatch):
    x = torch.rand(3)
    with watching(monkeypatch) as found:
        x.tolist()
        x[x > 0.5]
        if x.sum() > 0:
            F.relu(x)
    assert [line.split()[0] for line in found if not line.startswith("_local")] == ["tolist", "index", "__bool__"]
