"""Claim: with recompute=True the peak memory of a layer does not depend on the degree, at 1.4 times the time or less.

Forward and backward of SOC2d(64, 64, 3) on 32 x 32 images, batch 128, degree 4 and 16; flat within 10%.

Both sides run in one process, in turn, two threads, float32; the best round of each counts. Records go to
benchmarks/records with versions and machine.

Run: python benchmarks/bench_recompute.py
"""

from pathlib import Path

from skewconv.commands.bench import Bench

if __name__ == "__main__":
    raise SystemExit(Bench(suites=("recompute",), out=Path(__file__).parent / "records").run())
