"""BCOP layers of LConvNet compute here what they computed there, but for a shift of even kernels."""

import pytest
import torch
import torch.nn.functional as F

from skewconv.errors import ArgumentError
from skewconv.foreign import ForeignWeightsError, bcop_from_lconvnet
from skewconv.nn import BCOP2d
from tests.foreign import theirs


def lconvnet(state: theirs.State, x: torch.Tensor) -> torch.Tensor:
    """Their layer: one pixel more of padding in front where the kernel is even."""
    matrices, bias = state["param_matrices"], state["bias"]
    weight = theirs.bcop_filter(matrices, x.shape[1], len(bias), 20, transposes_one_tap=False)
    k = weight.shape[-1]
    before, after = k // 2, k // 2 - (k % 2 == 0)
    # torch.roll has no border: as many copies as the padding needs.
    rows = torch.cat([x[..., x.shape[-2] - before :, :], x, x[..., :after, :]], -2)
    padded = torch.cat([rows[..., rows.shape[-1] - before :], rows, rows[..., :after]], -1)
    return F.conv2d(padded, weight, bias)


@pytest.mark.parametrize(
    ("read", "kept", "kernel", "stride"),
    [(2, 6, 3, 1), (6, 2, 3, 1), (4, 4, 5, 1), (2, 5, 3, 2), (4, 4, 1, 1), (5, 3, 1, 1)],
)
def test_a_layer_computes_what_theirs_does(read, kept, kernel, stride):
    state = theirs.bcop_state(read * stride**2, kept, kernel, "conv1.conv.", "param_matrices")
    layer = bcop_from_lconvnet(state, "conv1.conv", in_channels=read, stride=stride)
    x = theirs.normal(2, read, 8, 8)
    expected = lconvnet(theirs.layer(state, "conv1.conv."), theirs.folded(x, stride))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, atol=1e-9, rtol=0)
    assert layer.gain_bounds()[1] <= 1


@pytest.mark.parametrize(("read", "kept"), [(2, 6), (6, 2)])
def test_even_kernels_are_refused_or_shifted_by_one_pixel(read, kept):
    state = theirs.bcop_state(read, kept, 2, name="param_matrices")
    with pytest.raises(ForeignWeightsError, match=r"the kernel is 2 x 2: .*shifted=True"):
        bcop_from_lconvnet(state, in_channels=read)
    layer, x = bcop_from_lconvnet(state, in_channels=read, shifted=True), theirs.normal(1, read, 5, 5)
    with torch.no_grad():
        moved = torch.roll(layer(x), (1, 1), (-2, -1))
    torch.testing.assert_close(moved, lconvnet(state, x), atol=1e-9, rtol=0)


def test_the_order_of_the_factors_matters_where_rows_are_cut():
    one, other = (BCOP2d(6, 2, 3, order=order, dtype=torch.float64).eval() for order in ("height-first", "lconvnet"))
    other.load_state_dict(one.state_dict())
    before = one.weight
    assert (before - other.weight).abs().max() > 0.01
    # A setting that changes is noticed by the layer's cache.
    one.order = "lconvnet"
    torch.testing.assert_close(one.weight, other.weight)
    assert other.gain_bounds()[1] <= 1
    with pytest.raises(ArgumentError, match="order must be one of 'height-first', 'lconvnet'"):
        BCOP2d(6, 2, 3, order="width")


def test_entries_that_do_not_fit_are_named():
    state = theirs.bcop_state(4, 8, 3, "conv1.conv.", "param_matrices")
    one_tap, square = theirs.bcop_state(2, 4, 1, name="param_matrices"), {"param_matrices": torch.ones(4, 2, 2)}
    for given, name, options, message in (
        (state, "conv9", {}, "is called 'conv9': there are conv1.conv"),
        ({"linear.weight": torch.ones(2, 2)}, "conv1", {}, "the entries are linear.weight"),
        (state, "conv1.conv", {"in_channels": 16}, "8 rows, but in_channels=16"),
        (one_tap, "", {"in_channels": 2}, "kernel size 1 does not run from 2 to 4"),
        (square, "", {"in_channels": 2, "shifted": True}, r"shape \(4, 2, 2\): theirs is"),
    ):
        with pytest.raises(ForeignWeightsError, match=message):
            bcop_from_lconvnet(given, name, **options)
