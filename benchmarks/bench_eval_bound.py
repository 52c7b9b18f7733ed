"""Question: would eval mode repay the tight bound of a filter's norm, which `skewconv.freeze` takes?

What against what: for each SOC layer of a trained run, in batches of 128 as it meets them, a forward pass in eval mode
with the polynomial for the norm bound that the filter was scaled to, against one with the shorter polynomial that the
proven norm at the image's size allows at the same error; and the seconds that this proof takes. From both follows how
many images with the same weights repay it. The whole network frozen at 1e-6 stands beside. Best of several rounds.
Writes benchmarks/records/eval-bound.json with versions and machine, and the table of docs/performance.md.

Run: python benchmarks/bench_eval_bound.py RUN [--threads 2] [--rounds 5]
"""

import argparse
import copy
import math
import time
from pathlib import Path
from typing import Any

import torch
from tables import RECORDS, write_pages
from torch import Tensor, nn

from skewconv import freeze
from skewconv.bench.timing import side_by_side
from skewconv.config import to_dict
from skewconv.nn import SOC2d
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.records import make_record, write_record
from skewconv.train.run import open_run

BATCH = 128


def inputs(model: nn.Module, images: Tensor) -> dict[SOC2d, Tensor]:
    """What each SOC layer meets."""
    met: dict[SOC2d, Tensor] = {}
    layers = [module for module in model.modules() if isinstance(module, SOC2d)]
    hooks = [layer.register_forward_pre_hook(lambda layer, args: met.update({layer: args[0]})) for layer in layers]
    model(images)
    for hook in hooks:
        hook.remove()
    return met


def measure(layer: SOC2d, x: Tensor, arguments: argparse.Namespace) -> dict[str, Any]:
    """One layer: degrees, seconds, and after how many images the proof is repaid."""
    size = [n // s for n, s in zip(x.shape[2:], layer.stride, strict=True)]
    start = time.perf_counter()
    bound = norm_upper_bound_at(layer.weight, size, layer.padding_mode)
    proof = time.perf_counter() - start
    own = layer.polynomial()
    short = copy.deepcopy(layer)
    # The filter and its products are what is timed: a polynomial of that degree, whatever its coefficients.
    short.eval_accuracy = type(layer.eval_accuracy)(
        layer.eval_accuracy.series,
        layer.eval_accuracy.polynomial(min(bound, own.norm_bound)).degree,
        layer.eval_accuracy.tol,
        layer.eval_accuracy.non_expansive,
    )
    found = side_by_side(
        {"own": lambda: layer(x), "tight": lambda: short(x)}, rounds=arguments.rounds, threads=arguments.threads
    )
    saved = (found["own"].best - found["tight"].best) / BATCH
    return {
        "channels": layer.channels,
        "size": size,
        "norm_bound": own.norm_bound,
        "proven_norm": bound,
        "degrees": [own.degree, short.polynomial().degree],
        "seconds": [found["own"].best, found["tight"].best],
        "proof_seconds": proof,
        "images_to_repay": math.ceil(proof / saved) if saved > 0 else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run = open_run(arguments.run)
    images = torch.rand(BATCH, *run.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        rows = [measure(layer, x, arguments) for layer, x in inputs(run.model, images).items()]
        start = time.perf_counter()
        frozen = freeze(run.model, run.input_shape)
        freezing = time.perf_counter() - start
        found = side_by_side(
            {"eval": lambda: run.model(images), "frozen": lambda: frozen(images)},
            rounds=arguments.rounds,
            threads=arguments.threads,
        )
    for row in rows:
        print(row, flush=True)
    network = {
        "eval_seconds": found["eval"].best,
        "frozen_seconds": found["frozen"].best,
        "freezing_seconds": freezing,
        "images_to_repay": math.ceil(freezing / (found["eval"].best - found["frozen"].best) * BATCH),
    }
    print(network)
    results = {"batch": BATCH, "threads": arguments.threads, "layers": rows, "network": network}
    record = make_record("bench", config=to_dict(run.config), seed=run.config.seed, results=results)
    write_record(RECORDS / "eval-bound.json", record)
    write_pages()


if __name__ == "__main__":
    main()
