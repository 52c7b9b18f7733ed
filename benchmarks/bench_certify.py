"""Claims: certifying images takes at most 3 times as long as a plain float32 evaluation of the same, unfrozen model;
with --fast, which certifies the model frozen at 1e-3, at most 1.5 times.

What against what: everything `skewconv certify` does between loading and writing (a float64 copy, proofs, radii)
against the model in eval mode in its own precision, both over the same images, the proofs of the plain model's own
eval mode included, and of --fast the freezing. LipConvnet-5; two threads; one pass each, in batches of 128, as a user
would run them. Writes benchmarks/records/certify.json and certify-fast.json, or certify-RUN.json and
certify-RUN-fast.json, with versions and machine, and the table of docs/performance.md.

Run: python benchmarks/bench_certify.py --run RUN  (the test images of a trained run)
     python benchmarks/bench_certify.py            (random weights of width 32, 10,000 random images)
     --threads 1 --cpu-time                        (CPU seconds, for a machine that others use; nothing is written)
"""

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import torch
from tables import write_pages
from torch import Tensor, nn

from skewconv.certify import certify_dataset
from skewconv.certify.certificates import FAST_TOLERANCE
from skewconv.models import LipConvnet
from skewconv.records import make_record, write_record

BATCH = 128
# Of the record's name, with its tolerance and claim.
KINDS: dict[str, tuple[float | None, float]] = {"": (None, 3.0), "-fast": (FAST_TOLERANCE, 1.5)}


def subject(arguments: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor, dict[str, Any]]:
    """The model, its images and labels, and what to write of them."""
    if arguments.run is None:
        torch.manual_seed(0)
        images = torch.rand(arguments.images or 10_000, 3, 32, 32)
        return LipConvnet(5), images, torch.zeros(len(images), dtype=torch.int64), {"depth": 5, "width": 32}
    from skewconv.config import to_dict
    from skewconv.train.run import eval_data, open_run

    run = open_run(arguments.run)
    images, labels, _ = eval_data(run, split="test", images=arguments.images).tensors()
    return run.model, images, labels, to_dict(run.config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    torch.set_num_threads(arguments.threads)
    model, images, labels, config = subject(arguments)
    plain = copy.deepcopy(model).eval()
    start = clock()
    with torch.inference_mode():
        right = sum(
            int((plain(x).argmax(1) == t).sum()) for x, t in zip(images.split(BATCH), labels.split(BATCH), strict=True)
        )
    evaluated = clock() - start
    print(f"{len(images):,} images: plain float32 evaluation {evaluated:.1f} s ({right / len(images):.2%} right)")
    for kind, (tol, claim) in KINDS.items():
        start = clock()
        found = certify_dataset(model, images, labels, batch_size=BATCH, fast_tol=tol)
        certified = clock() - start
        ratio = certified / evaluated
        radius = float(found.radius.mean())
        print(
            f"certification{kind} {certified:.1f} s, mean radius {radius:.4f}, ratio {ratio:.2f} (target <= {claim:g})"
        )
        results = {
            "images": len(images),
            "evaluation_seconds": evaluated,
            "certification_seconds": certified,
            "ratio": ratio,
        }
        record = make_record("bench", config=config, seed=0, results=results)
        name = "certify" if arguments.run is None else f"certify-{arguments.run.name}"
        if not arguments.cpu_time:
            write_record(Path(__file__).parent / "records" / f"{name}{kind}.json", record)
            write_pages()


if __name__ == "__main__":
    main()
