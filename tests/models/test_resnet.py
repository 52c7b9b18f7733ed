"""Pre-activation ResNets with every convolution, their shapes, parameter counts and bounds."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skewconv import models
from skewconv.errors import ArgumentError
from skewconv.models import parts
from skewconv.nn import AOL2d, BCOP2d, Cayley2d, CPL2d, MaxMin, SLL2d, SOC2d, lipschitz_upper_bound

KINDS = {
    "standard": nn.Conv2d,
    "soc": SOC2d,
    "bcop": BCOP2d,
    "cayley": Cayley2d,
    "aol": AOL2d,
    "sll": SLL2d,
    "cpl": CPL2d,
}
CONVOLUTIONS = {"resnet18": 1 + 16 + 3, "resnet34": 1 + 32 + 3, "resnet50": 1 + 48 + 4}


@pytest.mark.parametrize(
    ("name", "conv"),
    [*(("resnet18", conv) for conv in parts.CONVOLUTIONS), ("resnet34", "standard"), ("resnet50", "soc")],
)
def test_every_model_and_convolution_runs_forward_and_backward(name, conv):
    model = getattr(models, name)(5, conv=conv, width=4)
    kinds = [type(m) for m in model.modules() if isinstance(m, tuple(KINDS.values()))]
    assert kinds.count(KINDS[conv]) == CONVOLUTIONS[name]
    # Residual layers have an orthogonal change of channels before them.
    assert set(kinds) == ({KINDS[conv], SOC2d} if conv in ("sll", "cpl") else {KINDS[conv]})
    logits = model(torch.rand(2, 3, 16, 16))
    assert logits.shape == (2, 5)
    F.cross_entropy(logits, torch.tensor([1, 4])).backward()
    for key, p in model.named_parameters():
        assert p.grad is not None or not p.numel(), key
        assert not p.numel() or bool(p.grad.isfinite().all()), key


@pytest.mark.parametrize(("activation", "kind"), [("relu", nn.ReLU), ("swish", nn.SiLU), ("maxmin", MaxMin)])
def test_the_activations_of_the_authors_code_are_choices_and_bounded(activation, kind):
    model = models.resnet18(5, conv="soc", width=4, activation=activation)
    activations = [m for m in model.modules() if isinstance(m, (nn.ReLU, nn.SiLU, MaxMin))]
    assert {type(m) for m in activations} == {kind}
    assert len(activations) == 2 * 8 + 1
    assert model(torch.rand(2, 3, 16, 16)).shape == (2, 5)
    model.double().eval()
    x = torch.rand(2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(model(x)[:, 0].sum(), x)
    assert grad.flatten(1).norm(dim=1).max() <= lipschitz_upper_bound(model, (3, 16, 16))


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet18", 11_172_170), ("resnet34", 21_280_330), ("resnet50", 23_513_162)]
)
def test_standard_models_have_the_known_number_of_parameters(name, parameters):
    """The pre-activation ResNets for CIFAR-10, with the batch normalisation before the head that He et al. have."""
    with torch.device("meta"):
        model = getattr(models, name)()
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_each_stage_halves_the_image_and_doubles_the_channels():
    model = models.resnet50(width=4)
    x, shapes = torch.rand(1, 3, 16, 16), []
    for module in model.body:
        x = module(x)
        if isinstance(module, models.resnet.ResidualBlock):
            shapes.append(tuple(x.shape[1:]))
    assert shapes == [(16, 16, 16)] * 3 + [(32, 8, 8)] * 4 + [(64, 4, 4)] * 6 + [(128, 2, 2)] * 3


def test_bad_arguments_are_refused():
    with pytest.raises(ArgumentError, match="'standard'"):
        models.resnet18(conv="dense")
    with pytest.raises(ArgumentError, match="width"):
        models.resnet18(width=0)
    with pytest.raises(ArgumentError, match="'swish'"):
        models.resnet18(activation="tanh")
    with pytest.raises(ArgumentError, match="width must be even"):
        models.resnet18(width=3, activation="maxmin")
