"""Question: after how many images does eval mode repay the proof of a filter's norm, which norm="tracked" asks for?

What against what: for each SOC layer of a trained run, in batches of 128 as it meets them, and for wide layers that
were not trained, a forward pass in eval mode with the polynomial for the norm bound that the filter was scaled to,
against one with the shorter polynomial that the proven norm at the image's size allows at the same error; and the
seconds that this proof takes. From both follows how many images with the same weights repay it. The whole network
stands beside: as it is, with norm="tracked", and frozen at 1e-6. Best of several rounds.
Writes benchmarks/records/eval-bound.json with versions and machine, and the table of docs/performance.md.

Run: python benchmarks/bench_eval_bound.py [RUN] [--threads 2] [--rounds 5]
"""

import argparse
import copy
import math
import time
from typing import Any

import torch
from tables import RECORDS, write_pages
from torch import Tensor, nn

from skewconv import freeze
from skewconv.bench import side_by_side
from skewconv.config import to_dict
from skewconv.nn import SOC2d
from skewconv.nn.module_tools import replace_module
from skewconv.nn.soc.proven_interval import follows_norm_in_eval, proven_interval
from skewconv.nn.soc.tracked_norm import TrackedNorm
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.records import make_record, write_record
from skewconv.train.run import open_run

BATCH = 128
# Layers as wide as those of the paper's LipConvnet have, on 4 x 4 images.
WIDE = (512, 1024)


def inputs(model: nn.Module, images: Tensor) -> dict[SOC2d, Tensor]:
    """The input of each SOC layer."""
    met: dict[SOC2d, Tensor] = {}
    layers = [module for module in model.modules() if isinstance(module, SOC2d)]
    hooks = [layer.register_forward_pre_hook(lambda layer, args: met.update({layer: args[0]})) for layer in layers]
    model(images)
    for hook in hooks:
        hook.remove()
    return met


def in_tracked_form(layer: SOC2d) -> SOC2d:
    """The layer with norm="tracked"."""
    twin = copy.deepcopy(layer)
    arguments = (layer.channels, layer.taps.kernel, layer.groups, layer.centre.device, layer.centre.dtype)
    twin.tracked_norm = TrackedNorm(*arguments)
    return twin


def measure(layer: SOC2d, x: Tensor, arguments: argparse.Namespace) -> dict[str, Any]:
    """One layer: degrees, seconds, and after how many images the proof is repaid."""
    size = layer.size_met(tuple(x.shape[1:]))
    weight = layer.weight
    start = time.perf_counter()
    bound = norm_upper_bound_at(weight, size, layer.padding_mode)
    proof = time.perf_counter() - start
    own = layer.polynomial()
    short = copy.deepcopy(layer)
    # What is timed are the products: a polynomial of that degree, whatever its coefficients. The whole network, below,
    # is timed as it runs, with the look at the weights that tells whether the proof still holds.
    short.eval_accuracy = type(layer.eval_accuracy)(
        layer.eval_accuracy.series,
        layer.eval_accuracy.polynomial(min(bound, own.norm_bound)).degree,
        layer.eval_accuracy.tol,
        layer.eval_accuracy.non_expansive,
    )
    found = side_by_side(
        {"own": lambda: layer(x), "tight": lambda: short(x)}, rounds=arguments.rounds, threads=arguments.threads
    )
    return {
        "channels": layer.channels,
        "size": list(size),
        "norm_bound": own.norm_bound,
        "proven_norm": bound,
        "degrees": [own.degree, short.polynomial().degree],
        "seconds": [found["own"].best, found["tight"].best],
        "follows_norm": follows_norm_in_eval(in_tracked_form(layer)),
        "proof_seconds": proof,
        "images_to_repay": _images_to_repay(proof, found["own"].best - found["tight"].best),
    }


def measure_network(
    model: nn.Module, images: Tensor, input_shape: tuple[int, ...], arguments: argparse.Namespace
) -> dict[str, Any]:
    """The whole network: as it is, with norm="tracked", and frozen; and what the two proofs take."""
    tracked = copy.deepcopy(model)
    for name, module in list(tracked.named_modules()):
        if isinstance(module, SOC2d):
            replace_module(tracked, name, in_tracked_form(module).eval())
    model(images)
    start = time.perf_counter()
    tracked(images)
    first = time.perf_counter() - start
    start = time.perf_counter()
    frozen = freeze(model, input_shape)
    freezing = time.perf_counter() - start
    found = side_by_side(
        {"eval": lambda: model(images), "tracked": lambda: tracked(images), "frozen": lambda: frozen(images)},
        rounds=arguments.rounds,
        threads=arguments.threads,
    )
    eval_, short, fast = (found[name].best for name in ("eval", "tracked", "frozen"))
    proofs = {"tracked": _proof_seconds(tracked, images), "frozen": freezing}
    return {
        "eval_seconds": eval_,
        "tracked_seconds": short,
        "frozen_seconds": fast,
        "first_tracked_seconds": first,
        "proving_seconds": proofs["tracked"],
        "freezing_seconds": freezing,
        "images_to_repay_proofs": _images_to_repay(proofs["tracked"], eval_ - short),
        "images_to_repay": _images_to_repay(freezing, eval_ - fast),
    }


def _proof_seconds(tracked: nn.Module, images: Tensor) -> float:
    """All proofs of the norms in the network."""
    total = 0.0
    for layer, x in inputs(tracked, images).items():
        if follows_norm_in_eval(layer):
            weight, size = layer.weight, layer.size_met(tuple(x.shape[1:]))
            start = time.perf_counter()
            proven_interval(weight, size, layer.geometry)
            total += time.perf_counter() - start
    return total


def _images_to_repay(proof: float, saved_a_batch: float) -> int | None:
    return math.ceil(proof / saved_a_batch * BATCH) if saved_a_batch > 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="cifar10")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    run = open_run(arguments.run)
    model = run.model
    images = torch.rand(BATCH, *run.input_shape)
    with torch.inference_mode():
        rows = [measure(layer, x, arguments) for layer, x in inputs(model, images).items()]
        for channels in WIDE:
            layer = SOC2d(channels, channels, 3).eval()
            rows.append({**measure(layer, torch.rand(BATCH, channels, 4, 4), arguments), "trained": False})
        network = measure_network(model, images, run.input_shape, arguments)
    for row in rows:
        print(row, flush=True)
    print(network)
    results = {"batch": BATCH, "threads": arguments.threads, "layers": rows, "network": network}
    record = make_record("bench", config=to_dict(run.config), seed=run.config.seed, results=results)
    write_record(RECORDS / "eval-bound.json", record)
    write_pages()


if __name__ == "__main__":
    main()
