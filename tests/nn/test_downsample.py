"""Invertible downsampling: a permutation, in the order of pixel_unshuffle, undone exactly.

Values are moved and never computed with, so all comparisons are to the bit.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn import InvertibleDownsample
from skewconv.ops.permutations import invertible_downsample, invertible_upsample


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_the_order_of_channels_is_that_of_pixel_unshuffle(stride: int, channels: int, height: int, width: int) -> None:
    x = torch.randn(2, channels, height * stride, width * stride)
    y = invertible_downsample(x, stride)
    assert torch.equal(y, F.pixel_unshuffle(x, stride))
    assert torch.equal(invertible_upsample(y, stride), F.pixel_shuffle(y, stride))


strides = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


@given(strides, st.data())
def test_each_output_is_the_input_at_its_offset(stride: tuple[int, ...], data: st.DataObject) -> None:
    small = [data.draw(st.integers(1, 3)) for _ in stride]
    x = torch.arange(2 * 3 * np.prod(small) * np.prod(stride)).view(
        2, 3, *(n * s for n, s in zip(small, stride, strict=True))
    )
    y = invertible_downsample(x, stride)
    assert y.shape == (2, 3 * np.prod(stride), *small)
    channel = 0
    for c in range(3):
        for offset in np.ndindex(*stride):
            window = (slice(None), c, *(slice(o, None, s) for o, s in zip(offset, stride, strict=True)))
            assert torch.equal(y[:, channel], x[window])
            channel += 1


@given(strides, st.booleans())
def test_the_inverse_gives_every_entry_back(stride: tuple[int, ...], batched: bool) -> None:
    x = torch.randn(*(2,) * batched, 3, *(2 * s for s in stride))
    layer = InvertibleDownsample(stride)
    y = layer(x)
    assert torch.equal(layer.inverse(y), x)
    assert torch.equal(y.flatten().sort().values, x.flatten().sort().values)
    if batched:
        assert torch.equal(layer(x[0]), y[0])


def test_sizes_that_do_not_divide_are_refused_by_size_and_stride() -> None:
    with pytest.raises(ShapeError, match=r"size \(4, 5\).*stride \(2, 2\)"):
        InvertibleDownsample(2)(torch.zeros(1, 1, 4, 5))
    with pytest.raises(ShapeError, match=r"6 channels.*divisible by 4"):
        InvertibleDownsample(2).inverse(torch.zeros(1, 6, 4, 4))
    with pytest.raises(ShapeError, match=r"does not fit an input of shape \(4, 4\)"):
        invertible_downsample(torch.zeros(4, 4), 2)
    with pytest.raises(ShapeError, match="does not fit"):
        invertible_downsample(torch.zeros(1, 1, 1, 4, 4), (2, 2))
    for stride in (0, -1, True, 1.5, (), (2, 0), (2, "2")):
        with pytest.raises(ArgumentError, match="stride must be an integer >= 1"):
            InvertibleDownsample(stride)
