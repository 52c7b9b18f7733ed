"""Claim: frozen inference of LipConvnet-5 is at least 5 times (zero padding) and 20 times (circular padding) faster.

Against the literal Algorithm 1 with twelve convolutions, at no larger proven error; with circular padding also no
slower than BCOP's single cached convolution, which is measured beside both. Width 32, batch 128.

Both sides run in one process, in turn, two threads, float32; the best round of each counts. Records go to
benchmarks/records with versions and machine.

Run: python benchmarks/bench_inference.py
"""

from pathlib import Path

from skewconv.commands.bench import Bench

if __name__ == "__main__":
    raise SystemExit(
        Bench(suites=("inference-zeros", "inference-circular"), out=Path(__file__).parent / "records").run()
    )
