"""One rule for circular padding: a kernel wider than the image wraps around it as often as it must."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import skewconv
from skewconv import nn as snn
from skewconv.ball import prove
from skewconv.certify.ball_intake import described
from skewconv.certify.certifier import Certifier
from skewconv.nn.module_tools import float64_copy

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "SOC2d-series": lambda: snn.SOC2d(2, 3, 5, padding_mode="circular", engine="series"),
    "SOC2d-dense": lambda: snn.SOC2d(2, 2, 3, padding_mode="circular", engine="dense", dilation=3),
    "SOC2d-spectral": lambda: snn.SOC2d(2, 2, 5, padding_mode="circular", engine="spectral"),
    "SOCTranspose2d": lambda: snn.SOCTranspose2d(2, 3, 5, padding_mode="circular"),
    "BCOP2d-even": lambda: snn.BCOP2d(2, 2, 6),
    "Cayley2d": lambda: snn.Cayley2d(2, 2, 5),
    "AOL2d": lambda: snn.AOL2d(2, 2, 5, padding_mode="circular"),
    "SLL2d": lambda: snn.SLL2d(2, 2, 5, padding_mode="circular"),
    "CPL2d-even": lambda: snn.CPL2d(2, 2, 6, padding_mode="circular"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_small_image_is_one_period_of_a_large_one(name):
    torch.manual_seed(0)
    layer = LAYERS[name]().double().eval()
    x = torch.randn(2, 2, 1, 2, dtype=torch.float64, requires_grad=True)
    small, large = layer(x), layer(x.repeat(1, 1, 7, 4))[:, :, :1, :2]
    torch.testing.assert_close(small, large, atol=1e-6, rtol=0)
    (got,), (expected,) = (torch.autograd.grad(y.sin().sum(), x) for y in (small, large))
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_frozen_layers_certificates_and_proofs_in_balls_take_such_kernels(name):
    torch.manual_seed(0)
    model, shape = nn.Sequential(LAYERS[name](), nn.Flatten()).double().eval(), (2, 1, 2)
    x = torch.rand(1, *shape, dtype=torch.float64)
    for judged in (model, skewconv.freeze(model, shape)):
        logits = Certifier(judged, shape).logits(x)
        torch.testing.assert_close(logits, model(x), atol=1e-5, rtol=0)
        proof = prove(described(float64_copy(judged), shape), x.numpy(), logits.argmax(1).numpy())
        torch.testing.assert_close(torch.from_numpy(proof.logits), logits, atol=1e-9, rtol=0)
