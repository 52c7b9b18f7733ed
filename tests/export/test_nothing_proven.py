"""Where nothing is proven the radius of a file is zero: pixels that are none, and logits that overflow."""

import pytest
import torch
from torch import nn

from skewconv.errors import ArgumentError
from skewconv.export import TARGETS, export, open_file

targets = pytest.mark.parametrize("kind", list(TARGETS))


def written(kind: str, model: nn.Module, side: int, classes: int, images: torch.Tensor, folder):
    path = folder / f"net{TARGETS[kind].suffix}"
    export(TARGETS[kind], model.eval(), path, (1, side, side), "abcd"[:classes], images=images)
    return open_file(path)


@targets
def test_a_pixel_that_is_no_number_or_none_of_an_image_has_no_radius(kind, tmp_path):
    torch.manual_seed(0)
    images = torch.rand(64, 1, 8, 8)
    file = written(kind, nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)), 8, 4, images, tmp_path)
    assert float(file.runner(images[:1])[1]) > 0
    for bad in (torch.nan, torch.inf, -0.1, 1.1):
        spoilt = images[:1].repeat(64, 1, 1, 1)
        spoilt.view(64, 64).fill_diagonal_(bad)
        assert file.runner(spoilt)[1].tolist() == [0.0] * 64
        with pytest.raises(ArgumentError, match="must lie in"):
            file(spoilt)


@targets
@pytest.mark.parametrize("swapped", [False, True])
def test_logits_that_overflow_in_float32_have_no_radius(kind, swapped, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)).requires_grad_(False)
    rows = torch.tensor([[1.5e38] * 4, [0.0] * 4])
    model[1].weight.copy_(rows.flip(0) if swapped else rows)
    torch.manual_seed(0)
    file = written(kind, model, 2, 2, torch.rand(32, 1, 2, 2) * 0.2 + 0.05, tmp_path)
    logits, radius = file(torch.tensor([[[[0.9, 0.9], [0.9, 0.0]]]]))
    assert not bool(torch.isfinite(logits).all())
    assert radius.tolist() == [0.0]
