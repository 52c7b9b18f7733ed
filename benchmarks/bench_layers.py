"""Claim: one orthogonal layer of each kind beside nn.Conv2d, forward and backward; no ratio is claimed.

SOC, Algorithm 1, BCOP, Cayley of this library, and orthogonium's AOC and SOC where the extra bench is installed.

Both sides run in one process, in turn, two threads, float32; the best round of each counts. Records go to
benchmarks/records with versions and machine.

Run: python benchmarks/bench_layers.py
"""

from pathlib import Path

from skewconv.commands.bench import Bench

if __name__ == "__main__":
    raise SystemExit(Bench(suites=("layers",), out=Path(__file__).parent / "records").run())
