"""The runs of pixels that products of blocks go through: every block of the Jacobian once."""

import pytest
import torch

from skewconv.ops import dense_jacobian
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.dense_engine import block_count, pixel_runs


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 4)])
def test_runs_list_every_block_of_the_jacobian_once(size: tuple[int, int], padding_mode: str) -> None:
    geometry = Geometry.of((3, 3), padding_mode, 1, 1)
    pixels = size[0] * size[1]
    for tap in range(9):
        weight = torch.zeros(1, 1, 9)
        weight[..., tap] = 1.0
        listed = torch.zeros(pixels, pixels)
        for run in pixel_runs(geometry, size):
            if run.tap == tap:
                for i in range(run.length):
                    listed[run.target + i, run.source + i] += 1
        # exact: sums of ones
        assert torch.equal(listed, dense_jacobian(weight.view(1, 1, 3, 3), size, padding_mode))
    assert sum(run.length for run in pixel_runs(geometry, size)) == block_count(geometry, size)


def test_small_images_need_few_blocks() -> None:
    geometry = Geometry.of((3, 3), "zeros", 1, 1)
    assert [block_count(geometry, (n, n)) for n in (1, 2, 4)] == [1, 16, 100]
    assert [len(pixel_runs(geometry, (n, n))) for n in (1, 2, 4)] == [1, 11, 23]
