"""The networks of the paper, at the size of CIFAR-10 and small widths: exported, and run by strangers."""

import pytest
import torch

from skewconv.export import onnx
from skewconv.models import LipConvnet, resnet18
from tests.export.networks import LIPCONVNETS

pytestmark = pytest.mark.slow
SHAPE = (3, 32, 32)
NETWORKS = {
    f"{name}-{depth}": lambda name=name, depth=depth: LipConvnet(depth, width=8, **LIPCONVNETS[name])
    for name in LIPCONVNETS
    for depth in (5, 20)
} | {f"resnet18-{conv}": lambda conv=conv: resnet18(width=16, conv=conv) for conv in ("standard", "soc")}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_for_32_pixels_run_elsewhere(name, tmp_path, run_as_stranger):
    torch.manual_seed(0)
    model, images = NETWORKS[name]().eval().requires_grad_(False), torch.rand(24, *SHAPE)
    made = onnx(model, tmp_path / "net.onnx", SHAPE, images=images, radius="resnet" not in name)
    logits, *radii = run_as_stranger("onnx", made.files[0], images)
    # Activations have norms of some tens.
    torch.testing.assert_close(logits, model(images), atol=0.1, rtol=0.01)
    for radius in radii:
        assert float(radius.min()) >= 0
        assert float(radius.max()) > 1 / 255
