"""Question: what does a network lose in evaluation because it was trained with a coarser polynomial?

What against what: clean accuracy of the same weights on the same test images, each SOC layer with its polynomial of
evaluation (error 1e-6), and with the one that it was trained with (of degree 3 the error is 0.08 at a norm of 2.1). The
errors of the layers add up, so that depth matters. Float32, one thread.
Writes benchmarks/records/reproduce/training-polynomial.json with versions and machine, and the table of RESULTS.md is
made from it (python benchmarks/results.py).

Run: python benchmarks/training_polynomial.py RUN [RUN ...] [--images 2000]
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from results import TRAINING_POLYNOMIAL

from skewconv.nn import SOC2d
from skewconv.records import make_record, write_record
from skewconv.train.data import Batches, Examples, spread
from skewconv.train.run import open_run


def accuracy(model: torch.nn.Module, images: Examples) -> float:
    """The share of the images that it gets right."""
    batches = Batches(images, 250, seed=0, augment=False, shuffle=False, drop_last=False, device="cpu")
    with torch.inference_mode():
        return sum(int((model(x).argmax(1) == labels).sum()) for x, labels in batches) / len(images)


def measure(folder: Path, images: int) -> dict[str, Any]:
    """One run: its accuracy with either polynomial."""
    run = open_run(folder)
    model, some = run.model.eval(), spread(run.dataset().test, images)
    layers = [layer for layer in model.modules() if isinstance(layer, SOC2d)]
    degrees = {layer.polynomial(training=True).degree for layer in layers}
    accurate = accuracy(model, some)
    for layer in layers:
        layer.eval_accuracy = layer.train_accuracy
    return {
        "arch": run.config.model.arch,
        "depth": run.config.model.depth,
        "layers": len(layers),
        "images": len(some),
        "training_degree": max(degrees),
        "clean": accurate,
        "clean_with_the_polynomial_of_training": accuracy(model, some),
        "git": run.checkpoint.header.record["git"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for folder in arguments.runs:
        rows.append(measure(folder, arguments.images))
        print(rows[-1], flush=True)
    config = {"images": arguments.images}
    write_record(TRAINING_POLYNOMIAL, make_record("training-polynomial", config=config, seed=0, results={"rows": rows}))


if __name__ == "__main__":
    main()
