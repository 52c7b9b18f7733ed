"""Claim: certifying the network frozen at 1e-3 loses at most 0.02 points of certified accuracy.

What against what: the same weights and images, certified as they are and frozen at each tolerance from 1e-2 to 1e-6
(`certify --fast` is 1e-3), in float64 with all rounding covered, on the images that the run was judged by: those it
held out, else test images. CPU seconds, freezing and proofs included.
Writes benchmarks/records/frozen-tolerance.json with versions and machine, and the tables of docs/performance.md.

Run: python benchmarks/frozen_tolerance.py RUN [--images N] [--threads 1]
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from tables import write_pages
from torch import Tensor, nn

from skewconv.certify import certify_dataset
from skewconv.config import to_dict
from skewconv.frozen import freeze
from skewconv.nn import SOC2d
from skewconv.nn.primitives import SkewExponential
from skewconv.records import make_record, write_record
from skewconv.train.judged import judged_images
from skewconv.train.run import open_run

TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
RECORD = Path(__file__).parent / "records" / "frozen-tolerance.json"


def products(model: nn.Module) -> list[str]:
    """What each layer computes."""
    found = []
    for layer in model.modules():
        if isinstance(layer, SOC2d):
            found.append(str(layer.polynomial().degree))
        elif isinstance(layer, SkewExponential):
            found.append(str(layer.polynomial.degree))
        elif type(layer).__name__ == "Dense":
            found.append("matrix")
    return found


def certified(model: nn.Module, images: Tensor, labels: Tensor, radii: tuple[float, ...], tol: float | None) -> Any:
    """The figures, and CPU seconds."""
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
    judged = judged_images(run, images=arguments.images)
    images, labels, _ = judged.tensors()
    radii = run.config.radii
    whole = {"products": products(run.model), **certified(run.model, images, labels, radii, None)}
    print(f"as trained: {whole}", flush=True)
    rows = []
    for tol in TOLERANCES:
        row = {"tolerance": tol, "products": products(freeze(run.model, run.input_shape, tol=tol))}
        row |= certified(run.model, images, labels, radii, tol)
        row["points_lost"] = {r: 100 * (whole["certified"][r] - share) for r, share in row["certified"].items()}
        rows.append(row)
        print(row, flush=True)
    results = {"images": len(images), **judged.facts(), "whole": whole, "rows": rows}
    write_record(RECORD, make_record("tolerance", config=to_dict(run.config), seed=run.config.seed, results=results))
    write_pages()


if __name__ == "__main__":
    main()
