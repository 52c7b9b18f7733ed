"""What the tolerance of evaluation costs: certified accuracy and time, from 1e-2 to 1e-6, of one trained network.

What against what: the same weights and images, each SOC layer's polynomial chosen for each tolerance in turn, certified
in float64 with all rounding covered, on the images that the run was judged by: those it held out,
else test images. CPU seconds of one thread.
Writes benchmarks/records/reproduce/tolerance.json with versions and machine.

Run: python benchmarks/bench_tolerance.py RUN [--images N]
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from skewconv.config import to_dict
from skewconv.nn import SOC2d
from skewconv.records import make_record, write_record
from skewconv.train.build import make_splits
from skewconv.train.evaluate import evaluate
from skewconv.train.run import open_run

TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
RECORD = Path(__file__).parent / "records" / "reproduce" / "tolerance.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = open_run(arguments.run)
    chosen = make_splits(run.config, run.dataset())
    rows = []
    for tolerance in TOLERANCES:
        layers = [layer for layer in run.model.modules() if isinstance(layer, SOC2d)]
        for layer in layers:
            layer.eval_accuracy = replace(layer.eval_accuracy, degree=None, tol=tolerance)
        began = time.process_time()
        figures = evaluate(run.model, chosen.judged, run.config, images=arguments.images)
        seconds = time.process_time() - began
        degree = max(layer.polynomial().degree for layer in layers)
        rows.append({"tolerance": tolerance, "degree": degree, "cpu_seconds": seconds, **figures.plain()})
        print(
            f"{tolerance:g}: degree {degree}, clean {figures.clean:.2%}, {figures.certified}, {seconds:.1f} CPU s",
            flush=True,
        )
    results = {"split": chosen.name, "rows": rows}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    write_record(RECORD, make_record("tolerance", config=to_dict(run.config), seed=run.config.seed, results=results))


if __name__ == "__main__":
    main()
