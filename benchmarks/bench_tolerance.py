"""Certified accuracy and CPU time of one trained network at tolerances from 1e-2 to 1e-6.

Without --frozen: each SOC layer's polynomial is chosen for each tolerance in turn. Writes
benchmarks/records/reproduce/tolerance.json.

With --frozen, the claim: certifying the network frozen at 1e-3 (`certify --fast`) loses at most 0.02 points of
certified accuracy. It is certified as trained and frozen at each tolerance; CPU seconds include freezing and proofs.
Writes benchmarks/records/frozen-tolerance.json and the tables of docs/performance.md.

The same weights, in float64 with all rounding covered, on the images that the run held out, else test images.

Run: python benchmarks/bench_tolerance.py RUN [--images N] [--frozen] [--threads 1]
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tables import RECORDS, write_pages
from torch import Tensor, nn

from skewconv.certify import certify_dataset
from skewconv.config import to_dict
from skewconv.frozen import freeze
from skewconv.nn import SOC2d
from skewconv.nn.primitives import SkewExponential
from skewconv.records import make_record, write_record
from skewconv.train.data.dataset import make_splits
from skewconv.train.run import Run, eval_data, open_run
from skewconv.train.step import evaluate

TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def of_layers(run: Run, images: int | None) -> dict[str, Any]:
    """Clean and certified accuracy with each layer's polynomial at each tolerance."""
    chosen = make_splits(run.config, run.dataset())
    layers = [layer for layer in run.model.modules() if isinstance(layer, SOC2d)]
    rows = []
    for tolerance in TOLERANCES:
        for layer in layers:
            layer.eval_polynomial = replace(layer.eval_polynomial, degree=None, tol=tolerance)
        began = time.process_time()
        found = evaluate(run.model, chosen.eval, run.config, images=images).plain()
        seconds = time.process_time() - began
        degree = max(layer.polynomial().degree for layer in layers)
        rows.append({"tolerance": tolerance, "degree": degree, "cpu_seconds": seconds, **found})
        print(rows[-1], flush=True)
    return {"split": chosen.name, "rows": rows}


def of_frozen(run: Run, images: int | None) -> dict[str, Any]:
    """The network as trained, frozen at each tolerance, and the points lost."""
    data = eval_data(run, images=images)
    pixels, labels, _ = data.tensors()
    radii = run.config.radii
    whole = {"products": products(run.model), **certified(run.model, pixels, labels, radii, None)}
    print(f"as trained: {whole}", flush=True)
    rows = []
    for tol in TOLERANCES:
        row = {"tolerance": tol, "products": products(freeze(run.model, run.input_shape, tol=tol))}
        row |= certified(run.model, pixels, labels, radii, tol)
        row["points_lost"] = {r: 100 * (whole["certified"][r] - share) for r, share in row["certified"].items()}
        rows.append(row)
        print(row, flush=True)
    return {"images": len(pixels), **data.facts(), "whole": whole, "rows": rows}


def products(model: nn.Module) -> list[str]:
    """The degree of each layer's polynomial, or "matrix"."""
    found = []
    for layer in model.modules():
        if isinstance(layer, SOC2d):
            found.append(str(layer.polynomial().degree))
        elif isinstance(layer, SkewExponential):
            found.append(str(layer.polynomial.degree))
        elif type(layer).__name__ == "FrozenDense":
            found.append("matrix")
    return found


def certified(model: nn.Module, images: Tensor, labels: Tensor, radii: tuple[float, ...], tol: float | None) -> Any:
    """Clean and certified accuracy, and CPU seconds."""
    began = time.process_time()
    found = certify_dataset(model, images, labels, fast_tol=tol)
    seconds = time.process_time() - began
    results = found.results(radii)
    return {"clean": results["clean"], "certified": results["certified"], "cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int)
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run = open_run(arguments.run)
    results = (of_frozen if arguments.frozen else of_layers)(run, arguments.images)
    record = make_record("tolerance", config=to_dict(run.config), seed=run.config.seed, results=results)
    write_record(RECORDS / ("frozen-tolerance.json" if arguments.frozen else "reproduce/tolerance.json"), record)
    if arguments.frozen:
        write_pages()


if __name__ == "__main__":
    main()
