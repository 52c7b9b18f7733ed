"""Augmentation against a literal loop over the images, and its statistics.

Values are moved and never computed with, so all comparisons are to the bit.
"""

import pytest
import torch
from torch import Tensor

from skewconv.errors import ArgumentError, ShapeError
from skewconv.train.data import random_crop, random_flip
from skewconv.train.data.augment import crop_at, crop_offsets, flip_choices, flip_where


def crop_by_loop(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """What crop_at means, pixel by pixel."""
    count, _, height, width = images.shape
    out = torch.zeros_like(images)
    for n in range(count):
        for i in range(height):
            for j in range(width):
                row, column = i + int(offsets[n, 0]) - padding, j + int(offsets[n, 1]) - padding
                if 0 <= row < height and 0 <= column < width:
                    out[n, :, i, j] = images[n, :, row, column]
    return out


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "padding"), [((9, 3, 8, 8), 4), ((7, 1, 5, 9), 2), ((3, 2, 4, 4), 6), ((0, 3, 8, 8), 4)]
)
def test_a_crop_equals_the_loop_over_images(dtype: torch.dtype, shape: tuple[int, ...], padding: int) -> None:
    images = torch.randint(0, 256, shape, generator=seeded(1)).to(dtype)
    offsets = crop_offsets(len(images), padding, seeded())
    torch.testing.assert_close(
        crop_at(images, offsets, padding), crop_by_loop(images, offsets, padding), rtol=0, atol=0
    )
    assert torch.equal(random_crop(images, padding, seeded()), crop_by_loop(images, offsets, padding))


def test_a_flip_mirrors_exactly_the_chosen_images() -> None:
    images = torch.randint(0, 256, (40, 3, 5, 7), dtype=torch.uint8)
    choices = flip_choices(40, seeded())
    expected = torch.stack([image.flip(-1) if choice else image for image, choice in zip(images, choices, strict=True)])
    assert torch.equal(flip_where(images, choices), expected)
    assert torch.equal(random_flip(images, seeded()), expected)
    assert 0 < choices.sum() < 40


def test_shifts_are_uniform_and_independent() -> None:
    offsets = crop_offsets(81_000, 4, seeded())
    counts = torch.zeros(9, 9).index_put_(tuple(offsets.T), torch.ones(81_000), accumulate=True)
    # Chi-square with 80 degrees of freedom exceeds 137 with probability 7e-5.
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 137


def test_half_of_the_images_are_mirrored() -> None:
    # Five standard deviations of a fair coin thrown 100,000 times.
    assert abs(int(flip_choices(100_000, seeded()).sum()) - 50_000) < 5 * 158.2


def test_the_generator_alone_decides() -> None:
    images = torch.rand(64, 3, 8, 8)
    assert torch.equal(random_crop(images, 4, seeded(3)), random_crop(images, 4, seeded(3)))
    assert not torch.equal(random_crop(images, 4, seeded(3)), random_crop(images, 4, seeded(4)))
    state = torch.get_rng_state()
    random_flip(random_crop(images, 4, seeded()), seeded())
    assert torch.equal(torch.get_rng_state(), state)
    before = images.clone()
    random_flip(random_crop(images, 4, seeded()), seeded())
    assert torch.equal(images, before)


def test_without_padding_nothing_moves() -> None:
    images = torch.rand(4, 3, 8, 8)
    assert torch.equal(random_crop(images, 0, seeded()), images)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(3, 8, 8\): \(N, C, H, W\)"):
        random_crop(torch.rand(3, 8, 8))
    with pytest.raises(ShapeError):
        random_flip(torch.rand(3, 8, 8))
    with pytest.raises(ArgumentError, match="padding is -1"):
        random_crop(torch.rand(1, 3, 8, 8), -1)
