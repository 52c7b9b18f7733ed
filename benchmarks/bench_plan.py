"""Claim: the engine that a plan takes is at most 1.15 times as slow as the fastest, over the grid below or, with
``--random``, over shapes drawn from its ranges, with degrees 2..6 and 4..16.

What against what: p(J) x by every engine that a plan may choose, 3x3 filters, both paddings, channels 8..1024, side
1..64, batch 1..256; a training step (Chebyshev degree 3, gradients in image and filter) and an evaluation (degree 9,
and 6 with zeros). Shapes above ``--limit`` multiply-adds a convolution are not run.
How: float32, 2 threads (``--shared``: one, and its CPU time, which neighbours disturb less), engines in random order in
one process, best of up to ``--runs`` rounds, twice in a row in each (at least 3 rounds, about 0.3 s a shape); an engine
3 times slower than the best after two rounds is out, and a shape over the claim is measured again.
Prints: how many shapes, the share within 1.15, the mean ratio, and the worst cases; every shape goes to
benchmarks/records/plan.json (plan-random.json), or to ``--out``, with versions and machine. With ``--recorded FILE``
nothing is run: the plans of today are compared with the times of that record.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from skewconv.ops.convolution import Geometry, skew_filter
from skewconv.ops.convolution_exponential import ENGINES, apply_polynomial, plan
from skewconv.ops.engines.winograd_engine import LEAST_CHANNELS, LEAST_ERROR
from skewconv.ops.polynomials import Polynomial, polynomial
from skewconv.ops.products import onednn_is_faster
from skewconv.records import make_record, write_record

THREADS = 2
CLAIM = 1.15
SECONDS_A_SHAPE = 0.3


@dataclass(frozen=True)
class Shape:
    """One point of the grid."""

    channels: int
    side: int
    batch: int
    padding_mode: str
    training: bool
    degree: int

    @property
    def multiply_adds(self) -> int:
        return 9 * self.batch * self.side**2 * self.channels**2

    @property
    def geometry(self) -> Geometry:
        return Geometry.of((3, 3), self.padding_mode, 1, 1)

    @property
    def polynomial(self) -> Polynomial:
        return polynomial(2.1, self.degree, "chebyshev")

    def engine(self, onednn: bool | None = None) -> str:
        """The plan's choice, for a processor where oneDNN is the faster library or not (none: this one)."""
        m, n, error = self.channels, self.side, self.polynomial.truncation_error
        options = {
            "degree": self.degree,
            "padding_mode": self.padding_mode,
            "truncation_error": error,
            "onednn": onednn,
        }
        return plan((self.batch, m, n, n), (m, m, 3, 3), **options).engine

    def engines(self) -> list[str]:
        """Those that a plan may take: winograd in wide layers where the truncation error hides its rounding."""
        winograd = self.channels >= LEAST_CHANNELS and self.polynomial.truncation_error >= LEAST_ERROR
        served = [e for e in ENGINES if not ENGINES[e].refusal(self.geometry, (self.side, self.side))]
        return [e for e in served if e != "winograd" or (winograd and self.padding_mode == "zeros")]

    def __str__(self) -> str:
        kind = "training" if self.training else "evaluation"
        image = f"{self.channels} channels {self.side}x{self.side} batch {self.batch}"
        return f"{image:<32} {self.padding_mode:<9} {kind} degree {self.degree}"


def grid(limit: float) -> Iterator[Shape]:
    for channels in (8, 16, 32, 64, 128, 256, 512, 1024):
        for side in (1, 2, 4, 8, 16, 32, 64):
            for batch in (1, 16, 256):
                for padding_mode in ("zeros", "circular"):
                    for training in (True, False):
                        for degree in (3,) if training else (9, 6) if padding_mode == "zeros" else (9,):
                            shape = Shape(channels, side, batch, padding_mode, training, degree)
                            if shape.multiply_adds <= limit:
                                yield shape


def draw(limit: float, count: int, seed: int) -> Iterator[Shape]:
    """Random shapes: the same ranges, every whole number in them, small ones as often as large ones."""
    source = random.Random(seed)

    def number(low: int, high: int) -> int:
        return round(math.exp(source.uniform(math.log(low), math.log(high))))

    while count:
        padding_mode, training = source.choice(("zeros", "circular")), source.choice((True, False))
        degree = number(2, 6) if training else number(4, 16)
        shape = Shape(number(8, 1024), number(1, 64), number(1, 256), padding_mode, training, degree)
        if shape.multiply_adds <= limit:
            count -= 1
            yield shape


def contestants(shape: Shape) -> dict[str, Callable[[], None]]:
    """One training step or evaluation by each engine, all on the same tensors: where they lie in memory matters too."""
    m, size, p, geometry = shape.channels, (shape.side, shape.side), shape.polynomial, shape.geometry
    torch.manual_seed(0)
    # The norm of a random filter is about twice the root of its 9 m entries a row and their variance of 2.
    skew = skew_filter(torch.randn(m, m, 3, 3)) * 0.7 / (18 * m) ** 0.5
    x, direction = torch.randn(shape.batch, m, *size), torch.randn(shape.batch, m, *size)
    for tensor in (x, skew):
        tensor.requires_grad_(shape.training)

    def step(engine: str) -> None:
        with torch.set_grad_enabled(shape.training):
            y = apply_polynomial(x, skew, p, geometry, engine=engine)
        if shape.training:
            torch.autograd.grad(y, (x, skew), direction)

    return {engine: partial(step, engine) for engine in shape.engines()}


def measure(shape: Shape, runs: int, clock: Callable[[], float]) -> dict[str, float]:
    """The best time of each contestant."""
    steps = contestants(shape)
    for step in steps.values():
        step()
    best = dict.fromkeys(steps, math.inf)
    spent, order = 0.0, list(steps)
    for run in range(runs):
        random.shuffle(order)
        for engine in order:
            if run >= 2 and best[engine] > 3 * min(best.values()):
                continue
            # Twice in a row: the first time the caches are full of another engine's data.
            for _ in range(2):
                start = clock()
                steps[engine]()
                taken = clock() - start
                best[engine] = min(best[engine], taken)
                spent += taken
        if run >= 2 and spent > SECONDS_A_SHAPE:
            break
    return best


def measure_all(shapes: Iterator[Shape], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each shape."""
    torch.set_num_threads(1 if arguments.shared else THREADS)
    clock = time.thread_time if arguments.shared else time.perf_counter
    random.seed(0)
    rows = []
    for shape in shapes:
        best = measure(shape, arguments.runs, clock)
        for _ in range(arguments.again):
            # A neighbour's burst of work looks like a bad plan; a bad plan is still one when measured again.
            if best[shape.engine()] <= CLAIM * min(best.values()):
                break
            again = measure(shape, arguments.runs, clock)
            best = {engine: min(best[engine], again[engine]) for engine in best}
        rows.append({**asdict(shape), "seconds": best})
    return rows


def ratios(rows: list[dict[str, Any]], onednn: bool | None = None) -> list[tuple[float, Shape, dict[str, float]]]:
    """The time of the plan's engine over that of the fastest, the worst first; of shapes for which it was measured."""
    found = []
    for row in rows:
        shape, seconds = Shape(**{name: row[name] for name in Shape.__annotations__}), row["seconds"]
        times = {engine: taken for engine, taken in seconds.items() if engine in ENGINES}
        if (engine := shape.engine(onednn)) in times:
            found.append((times[engine] / min(times.values()), shape, times))
    return sorted(found, key=lambda each: -each[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--limit", type=float, default=5e9)
    parser.add_argument("--worst", type=int, default=15)
    parser.add_argument("--again", type=int, default=8, help="how often a shape over the claim is measured again")
    parser.add_argument("--random", type=int, metavar="COUNT", help="shapes drawn at random instead of the grid")
    parser.add_argument("--seed", type=int, default=0, help="of the shapes drawn")
    parser.add_argument("--out", type=Path, help="the record to write; by default the one that the pages are made from")
    parser.add_argument("--shared", action="store_true", help="one thread, CPU time")
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="compare plans with the times of this record")
    arguments = parser.parse_args()
    onednn = None
    if arguments.recorded:
        results = json.loads(arguments.recorded.read_text())["results"]
        rows, onednn = results["rows"], results.get("onednn", False)
    else:
        drawn = draw(arguments.limit, arguments.random, arguments.seed) if arguments.random else grid(arguments.limit)
        rows = measure_all(drawn, arguments)
    found = ratios(rows, onednn)
    within, mean = sum(ratio <= CLAIM for ratio, _, _ in found), sum(ratio for ratio, _, _ in found) / len(found)
    print(f"{len(found)} shapes: {within} within {CLAIM} of the fastest engine, mean ratio {mean:.3f}")
    print(f"worst {arguments.worst}:")
    for ratio, shape, times in found[: arguments.worst]:
        shown = ", ".join(f"{engine} {1e3 * seconds:.3f} ms" for engine, seconds in times.items())
        print(f"  {ratio:.2f}  {shape}: the plan took {shape.engine(onednn)}; {shown}")
    if arguments.recorded:
        return
    config = {name: value for name, value in vars(arguments).items() if name not in ("out", "recorded")}
    name = "plan-random.json" if arguments.random else "plan.json"
    out = arguments.out or Path(__file__).parent / "records" / name
    results = {"claim": CLAIM, "onednn": onednn_is_faster(), "rows": rows}
    write_record(out, make_record("bench", config=config, seed=arguments.seed, results=results))


if __name__ == "__main__":
    main()
