"""Trained networks that come with the package: weights rounded to 16 bits, and figures of exactly these weights."""

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skewconv.errors import ArgumentError, SkewconvError
from skewconv.records import write_record
from skewconv.train.build import build_model
from skewconv.train.checkpoint import Checkpoint, Header, save
from skewconv.train.data import Dataset
from skewconv.train.evaluate import evaluate
from skewconv.train.places import WEIGHTS_SUFFIX, record_beside

# What a clone of the repository should not cost more than.
LARGEST_BYTES = 20 * 2**20


def ship(
    checkpoint: Checkpoint, model: nn.Module, data: Dataset, folder: Path, name: str, *, images: int | None = None
) -> dict[str, Any]:
    """Round a finished run's weights to float16, judge what was stored, and keep both: the record.

    The network that is judged is read back from the file, so that its figures are those of the weights that ship and
    not of those that were trained.

    Args:
        checkpoint: of the run.
        model: its network.
        data: its dataset.
        folder: where the weights and the record go.
        name: under which the network shall be loaded.
        images: how many of the test images to judge by; all by default.
    """
    header = checkpoint.header
    if not header.position.finished:
        raise ArgumentError(f"{checkpoint.path} is not finished: let it train to its end, then ship it")
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"{name}{WEIGHTS_SUFFIX}"
    save(weights, Header(header.config, header.data, header.position, header.record), in_half(model))
    if (size := weights.stat().st_size) > LARGEST_BYTES:
        weights.unlink()
        raise SkewconvError(f"{name} has {size:,} bytes: at most {LARGEST_BYTES:,} may ship; train a smaller network")
    stored = build_model(header.config, header.data)
    Checkpoint(weights).restore_model(stored)
    figures = evaluate(stored.eval(), data.test, header.config, images=images)
    results: Mapping[str, Any] = {
        "name": name,
        "precision_of_the_weights": "float16",
        "bytes": size,
        "sha256": sha256(weights),
        "split": "test",
        **figures.plain(),
        "before_rounding": header.record["results"],
    }
    record = {**header.record, "kind": "shipped", "results": results}
    write_record(record_beside(weights), record)
    return record


def in_half(model: nn.Module) -> nn.Module:
    """A copy with its parameters in float16; buffers, such as the mean of the images, keep their precision."""
    rounded = copy.deepcopy(model)
    for name, parameter in rounded.named_parameters():
        half = parameter.data.to(torch.float16)
        if not bool(torch.isfinite(half).all()):
            raise SkewconvError(f"{name} has weights beyond {torch.finfo(torch.float16).max}: float16 cannot hold them")
        parameter.data = half
    return rounded


def sha256(path: Path) -> str:
    """The hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
