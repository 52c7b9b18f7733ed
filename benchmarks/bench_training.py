"""Claim: a training step of LipConvnet-5 is at least 4 times, LipConvnet-20 2.5 times faster than Algorithm 1.

Algorithm 1 is written from the paper with its authors' choices (autograd, Taylor of degree 5, four elementwise power
iterations); ours has no larger proven truncation error. Width 32, batch 128.

Both sides run in one process, in turn, two threads, float32; the best round of each counts. Records go to
benchmarks/records with versions and machine.

Run: python benchmarks/bench_training.py
"""

from pathlib import Path

from skewconv.commands.bench import Bench

if __name__ == "__main__":
    raise SystemExit(Bench(suites=("training-5", "training-20"), out=Path(__file__).parent / "records").run())
