"""Claim: sound certificates cost 0.00 to 0.02 points of certified accuracy beside the customary ones, and little time.

What against what: `skewconv certify`, which proves its bounds and subtracts the rounding error of its logits, against
what published code does on the same model: float32 logits, each layer's norm by power iteration on the layer at its
image size, and the least difference of two logits over the product of the norms times the distance of their rows in the
last layer (sqrt(2) where these are orthogonal), without any rounding. Times are processor seconds in one thread, of
preparing the model and of the images, so that a busy machine does not change them much.
Writes benchmarks/records/soundness-NAME.json with versions and machine.

Run: python benchmarks/bench_soundness.py RUN --name digits
     python benchmarks/bench_soundness.py RUN --name cifar10 --images 1000
"""

import argparse
import copy
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify import Certifier, certified_accuracy, certify_dataset
from skewconv.certify.audit import AFFINE
from skewconv.choices import RADII
from skewconv.config import to_dict
from skewconv.nn import lipschitz_upper_bound, lower
from skewconv.nn.lowering import chain
from skewconv.records import make_record, radius_name, write_record
from skewconv.train.run import eval_data, open_run

BATCH, POWER_STEPS = 128, 50


def estimated_norm(layer: nn.Module, x: Tensor) -> float:
    """||J|| of an affine layer by power iteration in float32, from the shape of x: an estimate from below."""
    torch.manual_seed(0)
    v = torch.randn_like(x)
    size = 0.0
    for _ in range(POWER_STEPS):
        v = (v / v.norm()).requires_grad_()
        with torch.enable_grad():
            y = layer(v) - layer(torch.zeros_like(x)).detach()
            (w,) = torch.autograd.grad(0.5 * y.square().sum(), v)
        size, v = float(y.detach().norm()), w
    return size


def customary_radii(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, float, float, float]:
    """(radii (n,), the estimated Lipschitz constant, seconds to prepare, seconds for the images)."""
    start = time.process_time()
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    x, estimate = torch.zeros_like(images[:1]), 1.0
    with torch.no_grad():
        *body, (_, head) = chain(lower(plain, tuple(images.shape[1:])))
        for _, layer in body:
            shape = tuple(x.shape[1:])
            estimate *= estimated_norm(layer, x) if isinstance(layer, AFFINE) else lipschitz_upper_bound(layer, shape)
            x = layer(x)
        prepared = time.process_time()
        logits = torch.cat([plain(batch) for batch in images.split(BATCH)])
        gaps = logits.gather(1, labels[:, None]) - logits
        apart = (head.weight[:, None] - head.weight).norm(dim=2)
        quotients = gaps / (apart[labels] * estimate)
        radii = quotients.scatter(1, labels[:, None], math.inf).amin(1).clamp_min(0)
    return radii.double(), estimate * estimated_norm(head, x), prepared - start, time.process_time() - prepared


def sound_radii(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, float, float, float]:
    """The same, proven."""
    start = time.process_time()
    certifier = Certifier(model, tuple(images.shape[1:]))
    prepared = time.process_time()
    pairs = zip(images.split(BATCH), labels.split(BATCH), strict=True)
    radii = torch.cat([certifier(*pair).radii for pair in pairs])
    return radii, certifier.lipschitz, prepared - start, time.process_time() - prepared


def compared(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """Both, and the radii for float32 besides."""
    ways = {"sound": sound_radii, "customary": customary_radii}
    found = {name: way(model, images, labels) for name, way in ways.items()}
    float32 = certify_dataset(model, images, labels, batch_size=BATCH)
    radii = {name: values[0] for name, values in found.items()} | {"sound in float32": float32.radius_float32}
    names = [radius_name(radius) for radius in (0.0, *RADII)]
    shares = {
        name: dict(zip(names, certified_accuracy(values, (0.0, *RADII)), strict=True)) for name, values in radii.items()
    }
    return {
        "images": len(images),
        "certified": shares,
        "mean_radius": {name: float(values.mean()) for name, values in radii.items()},
        "unproven": int((radii["customary"] > radii["sound"]).sum()),
        "largest_excess": float((radii["customary"] - radii["sound"]).max()),
        "lipschitz": {name: values[1] for name, values in found.items()},
        "preparing_seconds": {name: values[2] for name, values in found.items()},
        "image_seconds": {name: values[3] for name, values in found.items()},
        "float32_slack": float32.facts["float32_slack"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--images", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = open_run(arguments.run)
    data = eval_data(run, split="test", images=arguments.images)
    images, labels, _ = data.tensors()
    results = {**compared(run.model, images, labels), **data.facts()}
    for name, shares in results["certified"].items():
        print(f"{name:18}", "  ".join(f"{radius}: {share:.2%}" for radius, share in shares.items()))
    above = f"{results['unproven']} of {len(images)} customary radii are above what is proven"
    print(f"{above}, by {results['largest_excess']:.2g} at most")
    for name in ("lipschitz", "preparing_seconds", "image_seconds"):
        print(name, "  ".join(f"{way} {value:.6g}" for way, value in results[name].items()))
    record = make_record("soundness", config=to_dict(run.config), seed=run.config.seed, results=results)
    write_record(Path(__file__).parent / "records" / f"soundness-{arguments.name}.json", record)


if __name__ == "__main__":
    main()
