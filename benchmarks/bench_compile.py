"""Claim: a compiled training step on a CPU is not slower than the same step without a compiler.

What against what: torch.compile of the whole network and of the step of SGD (Inductor, dynamic shapes off), forward,
backward and update, against the same in eager mode, one process, in turn, the best of several rounds. LipConvnet-5 of
width 16, batch 128, float32. Both keep the memory that they free, as the commands that train do. The time to compile is
stated apart.
Writes benchmarks/records/compile.json with versions and machine, and the table of docs/performance.md.

Run: python benchmarks/bench_compile.py [--width 16] [--threads 2] [--rounds 30]
"""

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from tables import write_pages
from torch import Tensor, nn

from skewconv.bench import side_by_side
from skewconv.models import LipConvnet
from skewconv.records import make_record, write_record
from skewconv.train.hardware import keep_freed_memory

BATCH, CLAIM = 128, 1.0


def training_step(model: nn.Module, *, compiled: bool) -> Callable[[], None]:
    """Forward, backward and update."""
    x, labels = torch.rand(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    run: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False) if compiled else model
    update: Callable[[], object] = torch.compile(optimiser.step, dynamic=False) if compiled else optimiser.step

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(run(x), labels).backward()
        update()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    model = LipConvnet(5, width=arguments.width).train()
    twin = copy.deepcopy(model)
    steps = {"eager": training_step(model, compiled=False), "compiled": training_step(twin, compiled=True)}
    started = time.perf_counter()
    steps["compiled"]()
    compiling = time.perf_counter() - started
    found = side_by_side(steps, rounds=arguments.rounds, threads=arguments.threads)
    ratio = min(found["compiled"]) / min(found["eager"])
    for name, timing in found.items():
        print(f"{name:9} {min(timing) * 1e3:8.1f} ms")
    print(f"compiled / eager {ratio:.2f} (target <= {CLAIM:g}); the first step took {compiling:.1f} s")
    results = {
        **{f"{name}_seconds": min(timing) for name, timing in found.items()},
        "compiling_seconds": compiling,
        "ratio": ratio,
        "claim": CLAIM,
    }
    config = {"width": arguments.width, "batch": BATCH, "threads": arguments.threads}
    record = make_record("bench", config=config, seed=0, results=results)
    write_record(Path(__file__).parent / "records" / "compile.json", record)
    write_pages()


if __name__ == "__main__":
    main()
