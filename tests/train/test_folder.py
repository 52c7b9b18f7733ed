"""Anyone's own images."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skewconv.errors import ArgumentError
from skewconv.train.data import DataError, load_dataset


def paint(path: Path, size: tuple[int, int] = (6, 4), mode: str = "RGB", seed: int = 0) -> np.ndarray:
    """Write a random lossless image; size is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels, mode=None).save(path)
    return pixels


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Ten cats and five dogs, 6 x 4 pixels, without a split."""
    for number in range(10):
        paint(tmp_path / "pets" / "cat" / f"{number}.png", seed=number)
    for number in range(5):
        paint(tmp_path / "pets" / "dog" / f"{number}.png", seed=100 + number)
    return tmp_path / "pets"


def test_a_folder_with_its_own_split_loads_value_for_value(root, tmp_path):
    expected = {}
    for split, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for number in range(count):
                seed = len(expected)
                path = tmp_path / "pets" / split / name / f"{number}.png"
                expected[split, label, number] = paint(path, seed=seed).transpose(2, 0, 1)
    dataset = load_dataset(f"folder:{tmp_path / 'pets'}", root=root)
    assert dataset.classes == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    train = [pixels for (split, *_), pixels in expected.items() if split == "train"]
    test = [pixels for (split, *_), pixels in expected.items() if split == "test"]
    np.testing.assert_array_equal(dataset.train.images, train)
    np.testing.assert_array_equal(dataset.test.images, test)


def test_a_folder_without_a_split_is_split_by_class(pets, root):
    dataset = load_dataset(f"folder:{pets}", root=root)
    assert np.bincount(dataset.train.labels).tolist() == [8, 4]
    assert np.bincount(dataset.test.labels).tolist() == [2, 1]
    images = {image.tobytes() for split in (dataset.train, dataset.test) for image in split.images}
    assert len(images) == 15
    half = load_dataset(f"folder:{pets}", root=root, test_fraction=0.5)
    assert np.bincount(half.test.labels).tolist() == [5, 2]


def test_a_new_image_moves_no_other_from_training_to_test(pets, root):
    before = load_dataset(f"folder:{pets}", root=root)
    paint(pets / "dog" / "new.png", seed=999)
    after = load_dataset(f"folder:{pets}", root=root)
    assert len(after.train) + len(after.test) == 16
    trained = {image.tobytes() for image in before.train.images}
    assert sum(image.tobytes() in trained for image in after.test.images) == 0


def test_a_changed_image_is_noticed(pets, root):
    before = load_dataset(f"folder:{pets}", root=root)
    for path in (pets / "cat").iterdir():
        paint(path, seed=7)
    after = load_dataset(f"folder:{pets}", root=root)
    assert before.fingerprint != after.fingerprint
    assert len({image.tobytes() for image in after.train.images}) == 5


def test_grey_images_have_one_channel_unless_others_are_coloured(root, tmp_path):
    for name in ("a", "b"):
        for number in range(2):
            paint(tmp_path / "grey" / name / f"{number}.png", mode="L", seed=number)
    assert load_dataset(f"folder:{tmp_path / 'grey'}", root=root).image_shape == (1, 4, 6)
    paint(tmp_path / "grey" / "b" / "9.png", mode="RGB")
    dataset = load_dataset(f"folder:{tmp_path / 'grey'}", root=root)
    assert dataset.image_shape == (3, 4, 6)
    flat = [image for image in dataset.train.images if (image == image[0]).all()]
    assert len(flat) >= 2


def test_images_of_many_sizes_need_a_size(pets, root, no_trace):
    paint(pets / "cat" / "large.png", size=(9, 12))
    with pytest.raises(DataError, match=r"9 x 12 pixels.*6 x 4: give --size"):
        load_dataset(f"folder:{pets}", root=root)
    no_trace()
    assert load_dataset(f"folder:{pets}", root=root, size=5).image_shape == (3, 5, 5)


def copies(image: Image.Image, folder: Path, suffix: str = "png", **options: object) -> str:
    """A folder of two classes, each twice this picture."""
    for name in ("a/0", "a/1", "b/0", "b/1"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{name}.{suffix}", **options)
    return f"folder:{folder}"


def test_resizing_keeps_the_centre(root, tmp_path):
    # Wide images, red | green | blue in thirds: a centre crop is green.
    pixels = np.zeros((10, 30, 3), np.uint8)
    for third in range(3):
        pixels[:, 10 * third : 10 * third + 10, third] = 255
    image = load_dataset(copies(Image.fromarray(pixels), tmp_path / "wide"), root=root, size=10).train.images[0]
    assert (image == np.array([0, 255, 0], np.uint8)[:, None, None]).all()


def test_a_photograph_taken_sideways_stands_upright(root, tmp_path):
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise: what was left comes to the top
    dataset = load_dataset(copies(Image.fromarray(pixels), tmp_path / "photo", "jpg", exif=exif), root=root)
    assert dataset.image_shape == (3, 32, 16)
    assert dataset.train.images[0, :, :14].min() > 240
    assert dataset.train.images[0, :, 18:].max() < 15


def test_transparency_is_laid_on_white(root, tmp_path):
    clear = copies(Image.new("RGBA", (4, 4), (10, 20, 30, 0)), tmp_path / "clear")
    assert load_dataset(clear, root=root).train.images.min() == 255


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def bomb(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[16:24] = (60000).to_bytes(4, "big") * 2
    path.write_bytes(bytes(data))


FAULTS = {
    "text": (lambda pets: (pets / "cat/0.png").write_text("no image"), r"0.png cannot be read as an image"),
    "half": (lambda pets: half(pets / "cat/0.png"), r"0.png cannot be read as an image"),
    "bomb": (lambda pets: bomb(pets / "cat/0.png"), r"0.png (has too many pixels|cannot be read)"),
    "note": (lambda pets: (pets / "cat/notes.txt").write_text("x"), r"notes.txt is no image: .*allowed are .*\.png"),
    "folder": (lambda pets: (pets / "cat/kittens").mkdir(), r"kittens is a folder inside a class"),
    "empty class": (lambda pets: (pets / "bird").mkdir(), r"bird is empty"),
    "lonely class": (lambda pets: paint(pets / "bird/0.png"), r"class 'bird' has one example"),
    "train alone": (lambda pets: (pets / "train").mkdir(), r"'train' alone"),
    "class of the test": (
        lambda pets: [paint(pets / f"{path}/0.png") for path in ("train/a", "train/b", "test/a", "test/c")],
        r"the class 'c', which is not in train: \['a', 'b'\]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_with_a_fault_is_refused(fault, pets, root, no_trace):
    spoil, reason = FAULTS[fault]
    spoil(pets)
    with pytest.raises(DataError, match=reason):
        load_dataset(f"folder:{pets}", root=root)
    no_trace()


def test_hidden_files_are_no_matter(pets, root):
    for name in (".DS_Store", "Thumbs.db"):
        (pets / "cat" / name).write_text("")
    (pets / ".cache").mkdir()
    assert len(load_dataset(f"folder:{pets}", root=root).classes) == 2


def test_arguments_that_make_no_sense_are_refused(pets, root, no_trace):
    with pytest.raises(DataError, match="is not a folder"):
        load_dataset(f"folder:{pets / 'nowhere'}", root=root)
    with pytest.raises(DataError, match="no class folders: at least two"):
        load_dataset(f"folder:{pets / 'cat'}", root=root)
    with pytest.raises(ArgumentError, match="source"):
        load_dataset(f"folder:{pets}", root=root, source="npm")
    no_trace()


def test_files_that_cannot_be_read_are_all_named_or_left_out(pets, root, caplog):
    (pets / "dog" / "gone.png").symlink_to(pets / "nowhere.png")
    (pets / "dog" / "notes.txt").write_text("")
    with pytest.raises(DataError, match="2 files are in the way") as refused:
        load_dataset(f"folder:{pets}", root=root)
    assert "notes.txt is no image" in str(refused.value)
    assert "a link to nothing" in str(refused.value)
    (pets / "cat" / "0.png").write_bytes(b"no picture")
    found = load_dataset(f"folder:{pets}", root=root, skip_bad=True)
    assert len(found.train) + len(found.test) == 14
    assert all(name in caplog.text for name in ("notes.txt", "gone.png", "0.png"))


@pytest.mark.parametrize("spoilt", [("dog",), ("cat", "dog")])
def test_a_class_of_which_nothing_is_left_is_refused(spoilt, pets, root, no_trace):
    for name in spoilt:
        for path in (pets / name).iterdir():
            path.write_bytes(b"no image")
    with pytest.raises(DataError, match=f"no image of '{spoilt[0]}' left to train on"):
        load_dataset(f"folder:{pets}", root=root, skip_bad=True)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system does not take blocks in advance")
def test_a_disk_that_has_no_room_for_the_images_is_told_before_they_are_written(pets, root, no_trace, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"No space left on device\. Free some space"):
        load_dataset(f"folder:{pets}", root=root)
    no_trace()
