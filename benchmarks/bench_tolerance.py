"""Claim: certifying a network frozen at 1e-3 (`certify --fast`) loses at most 0.02 points of certified accuracy.

One trained network is certified as it is and frozen at tolerances from 1e-2 to 1e-6; CPU seconds include freezing and
proofs. Writes benchmarks/records/frozen-tolerance.json and the tables of docs/performance.md.

The same weights, in float64 with all rounding covered, on the images that the run held out, else test images.

Run: python benchmarks/bench_tolerance.py RUN [--images N] [--threads 1]
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from tables import RECORDS, write_pages
from torch import Tensor, nn

from skewconv.certify import certify_dataset
from skewconv.config import to_dict
from skewconv.frozen import freeze
from skewconv.nn import SOC2d
from skewconv.nn.primitives import Dense, SkewExponential
from skewconv.records import make_record, write_record
from skewconv.train.run import Run, eval_data, open_run

TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def measured(run: Run, images: int | None) -> dict[str, Any]:
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
        elif isinstance(layer, Dense):
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
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run = open_run(arguments.run)
    results = measured(run, arguments.images)
    record = make_record("tolerance", config=to_dict(run.config), seed=run.config.seed, results=results)
    write_record(RECORDS / "frozen-tolerance.json", record)
    write_pages()


if __name__ == "__main__":
    main()
