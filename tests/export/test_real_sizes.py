"""The networks of the paper, at the size of CIFAR-10 and small widths: exported, and run by strangers."""

import pytest
import torch

from skewconv.export import TARGETS, export
from skewconv.models import LipConvnet, resnet18
from tests.export.networks import LIPCONVNETS

pytestmark = pytest.mark.slow
SHAPE = (3, 32, 32)


@pytest.mark.parametrize("depth", [5, 20])
@pytest.mark.parametrize("name", LIPCONVNETS)
def test_lipconvnets_for_32_pixels_run_elsewhere(name, depth, tmp_path, run_as_stranger):
    torch.manual_seed(0)
    model = LipConvnet(depth, width=8, **LIPCONVNETS[name]).eval().requires_grad_(False)
    images = torch.rand(24, *SHAPE)
    made = export(TARGETS["onnx"], model, tmp_path / "net.onnx", SHAPE, images=images)
    logits, radius = run_as_stranger("onnx", made.files[0], images)
    # Activations have norms of some tens.
    torch.testing.assert_close(logits, model(images), atol=0.1, rtol=0)
    assert bool((radius >= 0).all())
    assert float(radius.max()) > 1 / 255
    parameters = sum(parameter.numel() for parameter in model.parameters())
    fast = made.files[0].stat().st_size
    assert fast < 8.1 * 4 * parameters or name not in ("soc-zeros", "soc-circular", "bcop", "normalised-head")


@pytest.mark.parametrize("conv", ["standard", "soc"])
def test_resnet18_for_32_pixels_runs_elsewhere(conv, tmp_path, run_as_stranger):
    torch.manual_seed(0)
    model = resnet18(width=16, conv=conv).eval().requires_grad_(False)
    images = torch.rand(8, *SHAPE)
    made = export(TARGETS["onnx"], model, tmp_path / "net.onnx", SHAPE, images=images, radius=False)
    (logits,) = run_as_stranger("onnx", made.files[0], images)
    torch.testing.assert_close(logits, model(images), atol=0.05, rtol=0.01)
