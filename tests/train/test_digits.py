"""The digits of scikit-learn."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from skewconv.extras import MissingExtraError
from skewconv.train.data import Augmentation, load_dataset


def test_digits_are_those_of_scikit_learn_scaled_and_split(root: Path) -> None:
    dataset, original = load_dataset("digits", root=root), load_digits()
    assert dataset.image_shape == (1, 8, 8)
    assert dataset.classes == tuple("0123456789")
    assert len(dataset.train) + len(dataset.test) == 1797
    assert dataset.train.images.max() == 255
    # Back on the scale 0 .. 16 the two halves are the original images, each exactly once.
    images = np.concatenate([dataset.train.images, dataset.test.images])[:, 0]
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    found = sorted((label, np.rint(image * (16 / 255)).tobytes()) for label, image in zip(labels, images, strict=True))
    expected = sorted((label, image.tobytes()) for label, image in zip(original.target, original.images, strict=True))
    assert found == expected
    assert set(np.unique(images)) == {round(value * 255 / 16) for value in range(17)}


def test_the_split_is_stratified_and_never_changes(root: Path) -> None:
    dataset = load_dataset("digits", root=root)
    shares = np.bincount(dataset.test.labels) / np.bincount(load_digits().target)
    np.testing.assert_allclose(shares, 0.2, atol=0.003)
    assert dataset.test.labels[:12].tolist() == [2, 3, 1, 2, 5, 6, 0, 5, 5, 8, 3, 2]
    assert (int(dataset.test.images.sum()), int(dataset.train.images.sum())) == (1789577, 7164224)


def test_digits_are_not_to_be_mirrored(root: Path) -> None:
    assert load_dataset("digits", root=root).augmentation == Augmentation(padding=1, flip=False)


def test_without_scikit_learn_the_remedy_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, no_trace) -> None:
    real = importlib.import_module

    def absent(name: str, package: str | None = None) -> object:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"scikit-learn is needed.*pip install '\.\[train\]'"):
        load_dataset("digits", root=root)
    no_trace()
