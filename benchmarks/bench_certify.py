"""Claim: certifying images takes at most 3 times as long as a plain float32 evaluation of the same, unfrozen model.

What against what: everything `skewconv certify` does between loading and writing (a float64 copy, proofs, radii)
against the model in eval mode in its own precision, both over the same images, the proofs of the plain model's own
eval mode included. LipConvnet-5; two threads; one pass each, in batches of 128, as a user would run them.
Writes benchmarks/records/certify.json, or certify-RUN.json, with versions and machine.

Run: python benchmarks/bench_certify.py --run RUN  (the test images of a trained run)
     python benchmarks/bench_certify.py            (random weights of width 32, 10,000 random images)
"""

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify import certify_dataset
from skewconv.models import LipConvnet
from skewconv.records import make_record, write_record

BATCH, CLAIM = 128, 3.0


def subject(arguments: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor, dict[str, Any]]:
    """The model, its images and labels, and what to write of them."""
    if arguments.run is None:
        torch.manual_seed(0)
        images = torch.rand(arguments.images or 10_000, 3, 32, 32)
        return LipConvnet(5), images, torch.zeros(len(images), dtype=torch.int64), {"depth": 5, "width": 32}
    from skewconv.config import to_dict
    from skewconv.train.judged import judged_images
    from skewconv.train.run import open_run

    run = open_run(arguments.run)
    images, labels, _ = judged_images(run, images=arguments.images).tensors()
    return run.model, images, labels, to_dict(run.config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    model, images, labels, config = subject(arguments)
    plain = copy.deepcopy(model).eval()
    start = time.perf_counter()
    with torch.inference_mode():
        right = sum(
            int((plain(x).argmax(1) == t).sum()) for x, t in zip(images.split(BATCH), labels.split(BATCH), strict=True)
        )
    evaluated = time.perf_counter() - start
    start = time.perf_counter()
    found = certify_dataset(model, images, labels, batch_size=BATCH)
    certified = time.perf_counter() - start
    ratio = certified / evaluated
    print(f"{len(images):,} images: plain float32 evaluation {evaluated:.1f} s ({right / len(images):.2%} right)")
    print(f"certification {certified:.1f} s, mean radius {float(found.radius.mean()):.4f}")
    print(f"ratio {ratio:.2f} (target <= {CLAIM:g})")
    results = {
        "images": len(images),
        "evaluation_seconds": evaluated,
        "certification_seconds": certified,
        "ratio": ratio,
    }
    record = make_record("bench", config=config, seed=0, results=results)
    name = "certify" if arguments.run is None else f"certify-{arguments.run.name}"
    write_record(Path(__file__).parent / "records" / f"{name}.json", record)


if __name__ == "__main__":
    main()
