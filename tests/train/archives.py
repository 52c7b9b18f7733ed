"""Miniature CIFAR archives, byte for byte in the layout of the official ones."""

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from skewconv.train.data.cifar import CIFAR10, CIFAR100, Cifar

MINI10 = replace(CIFAR10, train_count=20, test_count=6)
MINI100 = replace(CIFAR100, train_count=30, test_count=10)


def python2_pickle(value: Any) -> bytes:
    """Protocol 2 as Python 2 wrote it: strings are bytes, arrays go through numpy.core.multiarray."""
    return b"\x80\x02" + _emit(value) + b"."


def _emit(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        if 0 <= value < 256:
            return b"K" + bytes([value])
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))) + value
    if isinstance(value, list):
        return b"](" + b"".join(map(_emit, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_emit, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_emit(key) + _emit(item) for key, item in value.items()) + b"u"
    if isinstance(value, np.ndarray):
        code = value.dtype.str[1:]
        dtype = b"cnumpy\ndtype\n" + _emit((code, 0, 1)) + b"R" + _emit((3, "|", None, None, None, -1, -1, 0)) + b"b"
        state = b"(" + _emit(1) + _emit(value.shape) + dtype + _emit(False) + _emit(value.tobytes()) + b"t"
        return b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + _emit((0,)) + b"U\x01b\x87R" + state + b"b"
    raise TypeError(type(value))


def batches(spec: Cifar) -> dict[str, Any]:
    """The content of each file of an archive."""
    *train, test, meta = spec.files
    counts = dict.fromkeys(train, spec.train_count // len(train)) | {test: spec.test_count}
    classes = 10 if spec.name == "cifar10" else 100
    files: dict[str, Any] = {
        file: {
            "batch_label": "training batch 1 of 5",
            spec.label_key: [(seed + index) % classes for index in range(count)],
            "data": np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8),
            "filenames": [f"image_{index}.png" for index in range(count)],
        }
        for seed, (file, count) in enumerate(counts.items())
    }
    return files | {meta: {spec.names_key: [f"class_{number}" for number in range(classes)]}}


def write_archive(path: Path, spec: Cifar, files: Mapping[str, Any]) -> Cifar:
    """Write the archive and return the spec that expects it, checksums included."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, value in files.items():
            each, info = python2_pickle(value), tarfile.TarInfo(f"{spec.folder}/{name}")
            info.size = len(each)
            archive.addfile(info, io.BytesIO(each))
    path.write_bytes(gzip.compress(raw.getvalue(), 1))
    return replace(spec, md5=hashlib.md5(path.read_bytes()).hexdigest())
