"""The Winograd engine: a known rounding error in float32, taken only where that is hidden."""

import pytest
import torch
import torch.nn.functional as F

from skewconv.errors import ArgumentError
from skewconv.ops import conv_exp, plan, skew_filter
from skewconv.ops.engines.winograd_engine import LEAST_ERROR, WinogradProducts, transformed
from skewconv.ops.recurrence import ChannelWidths


def test_in_float32_it_rounds_by_no_more_than_four_times_a_convolutions_error() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(64, 64, 3, 3) / 24, torch.randn(8, 64, 16, 16)
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    products = WinogradProducts(ChannelWidths(1, 64, 64, 64), "zeros")
    with torch.no_grad():
        found = products.product(x.permute(2, 3, 0, 1).contiguous(), transformed(weight), 64, None, 0.0)
    by_convolution = (F.conv2d(x, weight, padding=1) - exact).norm() / exact.norm()
    error = (found.permute(2, 3, 0, 1) - exact).norm() / exact.norm()
    # Kernels differ in how they sum; the points 0, 1, -1, 2, -2 give 1.7e-6.
    assert error < 4 * max(by_convolution, 3e-7)
    assert error < 0.15 * LEAST_ERROR


WIDE = {"image_shape": (128, 256, 8, 8), "filter_shape": (256, 256, 3, 3), "degree": 3}


def test_a_plan_takes_it_for_wide_layers_where_the_truncation_error_hides_its_rounding() -> None:
    assert plan(**WIDE, truncation_error=1e-3).engine == "winograd"
    others = ({"dtype": torch.float64}, {"padding_mode": "circular"}, {"image_shape": (1, 256, 8, 8)})
    for otherwise in (
        {"truncation_error": 1e-6},
        *({"truncation_error": 1e-3, **other} for other in others),
        {"image_shape": (128, 16, 16, 16), "filter_shape": (16, 16, 3, 3), "truncation_error": 1e-3},
    ):
        assert plan(**{**WIDE, **otherwise}).engine != "winograd"


@pytest.mark.parametrize(
    "options",
    [{"dilation": 2}, {"groups": 2}, {"kernel": (5, 5)}, {"kernel": (3,)}],
    ids=lambda options: next(iter(options)),
)
def test_other_filters_are_refused_by_name(options: dict) -> None:
    kernel, groups = options.pop("kernel", (3, 3)), options.get("groups", 1)
    x = torch.randn(1, 4, *(8,) * len(kernel))
    skew = 0.01 * skew_filter(torch.randn(4, 4 // groups, *kernel), groups)
    with pytest.raises(ArgumentError, match=r"the winograd engine needs a 3 x 3 filter without .* got kernel"):
        conv_exp(x, skew, norm_bound=3.0, degree=3, engine="winograd", **options)
