"""Batches: a pure function of seed, epoch and step; resumed and shared out, they are the same batches.

Pixels are moved, and divided by 255 one by one (exact in the sense of conftest), so all comparisons are to the bit.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from skewconv.train.data import Augmentation, Batches, Split
from skewconv.train.data.dataset import crop_at

COUNT = 103
SPLIT = Split(np.random.default_rng(0).integers(0, 256, (COUNT, 3, 8, 8), np.uint8), np.arange(COUNT, dtype=np.int64))


def run(**options: object) -> list[tuple[Tensor, Tensor]]:
    settings = {"seed": 1, "epoch": 2, "augment": Augmentation(), **options}
    return list(Batches(SPLIT, 20, **settings))  # type: ignore[arg-type]


def assert_same(some: list[tuple[Tensor, Tensor]], others: list[tuple[Tensor, Tensor]]) -> None:
    assert len(some) == len(others)
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


def order(batches: list[tuple[Tensor, Tensor]]) -> list[int]:
    return torch.cat([labels for _, labels in batches]).tolist()


def test_an_epoch_shows_each_image_once():
    assert sorted(order(run(drop_last=False))) == list(range(COUNT))
    dropped = run(drop_last=True)
    assert [len(labels) for _, labels in dropped] == [20] * 5
    assert len(set(order(dropped))) == 100


def test_images_are_scaled_and_keep_their_labels():
    for images, labels in run(augment=None, drop_last=False):
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        expected = torch.from_numpy(SPLIT.images[labels.numpy()].astype(np.float32) / np.float32(255))
        assert torch.equal(images, expected)
    assert images.is_contiguous()


def test_augmented_images_are_shifted_and_mirrored_copies():
    plain, augmented = run(augment=None), run(augment=Augmentation(padding=1, flip=True))
    mirrored = 0
    for (images, labels), (changed, same_labels) in zip(plain, augmented, strict=True):
        assert torch.equal(labels, same_labels)
        for image, copy in zip(images, changed, strict=True):
            shifts = torch.nn.functional.pad(image, (1, 1, 1, 1)).unfold(1, 8, 1).unfold(2, 8, 1)
            windows = shifts.permute(1, 2, 0, 3, 4).reshape(9, 3, 8, 8)
            straight, flipped = ((windows == x).flatten(1).all(1).any() for x in (copy, copy.flip(-1)))
            assert straight or flipped
            mirrored += int(flipped)
    assert 25 < mirrored < 75


def test_the_same_seed_and_epoch_give_the_same_batches():
    batches = Batches(SPLIT, 20, seed=1, epoch=2, augment=Augmentation())
    assert_same(list(batches), list(batches))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert_same(list(batches), run())
    assert torch.equal(torch.get_rng_state(), state)


def test_another_seed_or_epoch_gives_another_order_and_other_augmentation():
    orders = [tuple(order(run(seed=seed, epoch=epoch))) for seed in range(4) for epoch in range(4)]
    assert len(set(orders)) == 16
    first = run(shuffle=False, epoch=0)[0][0]
    assert not torch.equal(first, run(shuffle=False, epoch=1)[0][0])
    copies = Split(np.repeat(SPLIT.images[:1], 40, 0), np.zeros(40, np.int64))
    steps = Batches(copies, 20, seed=0, shuffle=False, augment=Augmentation())
    (one, _), (two, _) = steps
    assert not torch.equal(one, two)


@pytest.mark.parametrize("start_step", [0, 1, 5, 6])
def test_starting_inside_the_epoch_continues_it_bit_for_bit(start_step):
    whole = run(drop_last=False)
    assert len(whole) == 6
    assert_same(run(drop_last=False, start_step=start_step), whole[start_step:])
    assert len(Batches(SPLIT, 20, seed=1, drop_last=False, start_step=start_step)) == 6 - start_step


@pytest.mark.parametrize("world_size", [1, 2, 5, 20])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_shares_of_all_ranks_are_the_batch_of_one_process(world_size, drop_last):
    shares = [run(rank=rank, world_size=world_size, drop_last=drop_last) for rank in range(world_size)]
    joined = [
        (torch.cat([images for images, _ in step]), torch.cat([labels for _, labels in step]))
        for step in zip(*shares, strict=True)
    ]
    assert_same(joined, run(drop_last=drop_last))
    for step in zip(*shares, strict=True):
        sizes = [len(labels) for _, labels in step]
        assert max(sizes) - min(sizes) <= 1


def test_alternating_flips_mirror_each_image_in_every_second_epoch():
    def mirrored(epoch: int) -> dict[int, bool]:
        found = {}
        for images, labels in run(epoch=epoch, augment=Augmentation(padding=0, alternate=True), drop_last=False):
            for image, label in zip(images, labels.tolist(), strict=True):
                plain = torch.from_numpy(SPLIT.images[label].astype(np.float32) / np.float32(255))
                found[label] = not torch.equal(image, plain)
                assert torch.equal(image, plain.flip(-1) if found[label] else plain)
        return found

    first, second, third = (mirrored(epoch) for epoch in range(3))
    assert 25 < sum(first.values()) < 75
    assert all(second[label] != first[label] for label in first)
    assert third == first
    # The batch's share of a process is cut from the same choices.
    whole = run(augment=Augmentation(alternate=True))
    shares = [run(augment=Augmentation(alternate=True), rank=rank, world_size=2) for rank in (0, 1)]
    joined = [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in zip(*shares, strict=True)]
    assert_same(whole, joined)


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("shape", "padding"),
    [((9, 3, 8, 8), 4), ((7, 1, 5, 9), 2), ((3, 2, 4, 4), 6), ((0, 3, 8, 8), 4), ((4, 3, 8, 8), 0)],
)
def test_a_crop_equals_the_loop_over_images(dtype, shape, padding):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, shape, generator=generator).to(dtype)
    offsets = torch.randint(0, 2 * padding + 1, (len(images), 2), generator=generator)
    assert torch.equal(crop_at(images, offsets, padding), crop_by_loop(images, offsets, padding))


def test_shifts_and_flips_are_uniform_and_independent():
    # One dark dot tells the shift and the flip of its image.
    count = 16_000
    image = np.full((1, 5, 5), 255, np.uint8)
    image[0, 2, 1] = 7
    split = Split(np.broadcast_to(image, (count, 1, 5, 5)), np.zeros(count, np.int64))
    ((found, _),) = Batches(split, count, seed=0, shuffle=False, augment=Augmentation(padding=1))
    rows, columns = (found[:, 0] * 255 == 7).nonzero()[:, 1:].T
    assert len(rows) == count
    # The dot's row is 1, 2 or 3; its column 0, 1 or 2, or 4, 3 or 2 where it is mirrored.
    counts = torch.zeros(3, 5).index_put_((rows - 1, columns), torch.ones(count), accumulate=True)
    expected = count / 18 * torch.tensor([1.0, 1.0, 2.0, 1.0, 1.0])
    # Chi-square with 14 degrees of freedom exceeds 42 with probability 1e-4.
    assert float(((counts - expected) ** 2 / expected).sum()) < 42
