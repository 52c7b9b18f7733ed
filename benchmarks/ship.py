"""Keep a finished run as a network of the package: float16 weights and the metrics of exactly these weights.

Run: python benchmarks/ship.py RUN NAME   (then skewconv.load("NAME") and `skewconv evaluate NAME` know it)
     skewconv certify NAME --images 1000 --out FOLDER   (with its certificates.json, kept for each version anew as
     skewconv/shipped/NAME-certificates.json, predictions say how their radii compare)
"""

import argparse
import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skewconv.errors import ArgumentError, SkewconvError
from skewconv.records import write_record
from skewconv.train.checkpoint import Checkpoint, Header, build_model, save
from skewconv.train.data import Dataset
from skewconv.train.environment import SHIPPED, WEIGHTS_SUFFIX, record_beside
from skewconv.train.run import open_run
from skewconv.train.step import evaluate

# What a clone of the repository should not cost more than.
LARGEST_BYTES = 10**7


def ship(checkpoint: Checkpoint, model: nn.Module, data: Dataset, folder: Path, name: str) -> dict[str, Any]:
    """Round a finished run's weights to float16, evaluate what was stored, and keep both: the record.

    The network that is evaluated is read back from the file, so that its metrics are those of the weights that ship.

    Args:
        checkpoint: of the run.
        model: its network.
        data: its dataset.
        folder: for the weights and the record.
        name: under which the network shall be loaded.
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
    results = {
        "name": name,
        "precision_of_the_weights": "float16",
        "bytes": size,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "split": "test",
        **evaluate(stored.eval(), data.test, header.config).plain(),
        "before_rounding": header.record["results"],
    }
    record = {**header.record, "kind": "shipped", "results": results}
    write_record(record_beside(weights), record)
    return record


def in_half(model: nn.Module) -> nn.Module:
    """A copy with parameters and vectors of power iterations in float16; means and deviations keep their precision."""
    rounded = copy.deepcopy(model)
    vectors = ((name, buffer) for name, buffer in rounded.named_buffers() if buffer.numel() > 1000)
    for name, tensor in (*rounded.named_parameters(), *vectors):
        half = tensor.data.to(torch.float16)
        if not bool(torch.isfinite(half).all()):
            raise SkewconvError(f"{name} has numbers beyond {torch.finfo(torch.float16).max}: float16 cannot hold them")
        tensor.data = half
    return rounded


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    record = ship(run.checkpoint, run.model, run.dataset(), SHIPPED, arguments.name)
    print(json.dumps(record["results"], indent=2))
