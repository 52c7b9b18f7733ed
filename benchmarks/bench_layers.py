"""Claim: a layer of SOC, norm tracked, takes at most 2.4 times as long as nn.Conv2d, forward and backward.

Beside it one layer of each other kind, of which no ratio is claimed: Algorithm 1, the other convolutions of this
library, and orthogonium's AOC and SOC where the extra bench is installed.

Both sides run in one process, in turn, two threads, float32; the best round of each counts. Records go to
benchmarks/records with versions and machine.

Run: python benchmarks/bench_layers.py
"""

from pathlib import Path

from skewconv.commands.bench import Bench

if __name__ == "__main__":
    raise SystemExit(Bench(suites=("layers",), out=Path(__file__).parent / "records").run())
