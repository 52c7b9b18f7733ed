"""The 1,797 handwritten digits that scikit-learn ships: 8 x 8, grey, nothing to download."""

import numpy as np

from skewconv.extras import optional
from skewconv.train.data.cache import EntryWriter
from skewconv.train.data.dataset import Augmentation
from skewconv.train.data.splits import stratified_split

FINGERPRINT = "v1"
_TEST_FRACTION, _SEED = 0.2, 0


def build(writer: EntryWriter) -> None:
    """Scale the values 0 .. 16 to 0 .. 255 and split, a fifth of each class for the test."""
    digits = optional("sklearn.datasets", "scikit-learn").load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    keys = [str(index) for index in range(len(labels))]
    train, test = stratified_split(keys, labels.tolist(), _TEST_FRACTION, _SEED)
    for split, chosen in (("train", train), ("test", test)):
        writer.images(split, (len(chosen), 1, 8, 8))[:] = images[chosen]
        writer.labels(split, labels[chosen])
    # A mirrored digit is no digit, and on 8 x 8 pixels a shift by one is as much as one by four on 32 x 32.
    writer.describe([str(digit) for digit in range(10)], Augmentation(padding=1, flip=False))
