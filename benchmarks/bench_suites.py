"""Claims about speed and memory that `skewconv bench` measures; the records go to benchmarks/records.

training-5, training-20   a training step is at least 4 times (LipConvnet-5) and 2.5 times (LipConvnet-20) as fast as
                          Algorithm 1, written from the paper with its authors' choices (autograd, Taylor of degree 5,
                          four elementwise power iterations), at no larger proven truncation error; width 32, batch 128
inference-zeros           frozen inference of LipConvnet-5 is at least 5 times as fast as Algorithm 1 with twelve
inference-circular        convolutions (circular padding: 20 times, and no slower than BCOP's single cached
                          convolution), at no larger proven error; width 32, batch 128
resnet                    a training step of ResNet-18 with SOC costs at most 6 times one with standard convolutions
                          (the paper measured 8.3), at no larger error than 6 Taylor terms; width 64, batch 128
recompute                 with recompute=True the peak memory of a layer does not depend on the degree (4 and 16, flat
                          within 10%), at 1.4 times the time or less; SOC2d(64, 64, 3) on 32 x 32 images, batch 128
layers                    a layer of SOC takes at most 2.4 times as long as nn.Conv2d, forward and
                          backward; beside it, without a claim, Algorithm 1, the other convolutions, and orthogonium's
                          AOC and SOC where the extra bench is installed

Both sides run in one process, in turn, two threads, float32; the best round of each counts.

Run: python benchmarks/bench_suites.py [SUITE ...]  (default: all)
"""

import sys
from pathlib import Path

from skewconv.bench import SUITES
from skewconv.commands.bench import Bench

if __name__ == "__main__":
    chosen = tuple(sys.argv[1:]) or tuple(SUITES)
    raise SystemExit(Bench(suites=chosen, out=Path(__file__).parent / "records").run())
