"""Claim: a training step of ResNet-18 with SOC costs at most 6 times one with standard convolutions.

The paper measured 8.3 times; our truncation error is no larger than that of its 6 Taylor terms. Width 64, batch 128.

Both sides run in one process, in turn, two threads, float32; the best round of each counts. Records go to
benchmarks/records with versions and machine.

Run: python benchmarks/bench_resnet.py
"""

from pathlib import Path

from skewconv.commands.bench import Bench

if __name__ == "__main__":
    raise SystemExit(Bench(suites=("resnet",), out=Path(__file__).parent / "records").run())
