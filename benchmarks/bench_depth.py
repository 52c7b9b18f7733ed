"""Claim: a training step of a LipConvnet with SOC is shorter than one with BCOP at every depth of the paper's Table 2.

What against what: at the paper's width and batch (32, 128), two threads, the networks of a group make whole training
steps in turn in one process, and the fastest step of each counts. Three groups: SOC (with zeros, and with the circular
padding that BCOP has) and BCOP as this library has them, in float32 and in mixed precision (bfloat16; the authors train
in float16), and both in float32 as the authors' code has them, written from their papers: Algorithm 1 (Taylor of degree
5, autograd through the series), and BCOP at full width, where all 2 k - 1 matrices of a layer have as many rows as the
larger of its channel counts, go through twenty steps of Björck's iteration under autograd, and are cut at the end. The
library's own BCOP keeps only the rows that survive, takes projectors from Cholesky factors, and multiplies factors of
half the rank.
Writes a record for each group to benchmarks/records/depth-time; `make results` makes the table and the plot of
RESULTS.md.

Run: python benchmarks/bench_depth.py [--depths 5 10 ...] [--groups ours mixed authors] [--rounds 3] [--no-record]
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.algorithm_1 import literal
from skewconv.bench import side_by_side
from skewconv.models import LipConvnet
from skewconv.nn import BCOP2d
from skewconv.nn.module_tools import replace_module
from skewconv.records import make_record, write_record

HERE = Path(__file__).parent
DEPTHS, WIDTH, BATCH, THREADS = (5, 10, 15, 20, 25, 30, 35, 40), 32, 128, 2
_OURS = ("soc", "soc-circular", "bcop")
# Those of a name that ends so are trained under autocast.
MIXED = "-mixed"
GROUPS = {
    "ours": _OURS,
    "mixed": tuple(f"{name}{MIXED}" for name in _OURS),
    "authors": ("algorithm-1", "full-width-bcop"),
}
RECORDS = HERE / "records" / "depth-time"
BJORCK_STEPS = 20


class FullWidthBCOP(nn.Module):
    """BCOP as in its authors' code: every matrix at full width, cut when the filter is made; autograd throughout."""

    def __init__(self, layer: BCOP2d) -> None:
        super().__init__()
        self.size, self.stride = layer.kernel_size, layer.stride
        self.inputs, self.outputs = layer.folded_channels, layer.out_channels
        self.channels = max(self.inputs, self.outputs)
        raw = torch.stack(
            [nn.init.orthogonal_(torch.empty(self.channels, self.channels)) for _ in range(2 * self.size - 1)]
        )
        self.raw = nn.Parameter(raw)
        self.bias = nn.Parameter(torch.zeros(self.outputs))

    def filter(self) -> Tensor:
        """(outputs, inputs, k, k)."""
        w = (
            self.raw
            / (self.raw.detach().abs().sum(1).amax(1) * self.raw.detach().abs().sum(2).amax(1)).sqrt()[:, None, None]
        )
        for _ in range(BJORCK_STEPS):
            w = 1.5 * w - 0.5 * w @ (w.mT @ w)
        half, identity = w[1:, :, : self.channels // 2], torch.eye(self.channels)
        taps = w[0][None, None]
        for index, projector in enumerate(half @ half.mT):
            axis = index % 2
            none = (0, 0) * (3 - axis)
            taps = F.pad(taps @ projector, (*none, 0, 1)) + F.pad(taps @ (identity - projector), (*none, 1, 0))
        return taps.permute(2, 3, 0, 1)[: self.outputs, : self.inputs]

    def forward(self, x: Tensor) -> Tensor:
        x = F.pixel_unshuffle(x, self.stride) if self.stride > 1 else x
        before, after = (self.size - 1) // 2, self.size // 2
        return F.conv2d(F.pad(x, (before, after, before, after), mode="circular"), self.filter(), self.bias)


def full_width(model: nn.Module) -> nn.Module:
    """The model with every BCOP2d replaced, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, BCOP2d):
            model = replace_module(model, name, FullWidthBCOP(module))
    return model


def step_of(name: str, depth: int) -> Callable[[], None]:
    """A training step of one of the networks, on random images."""
    model = CONTESTANTS[name.removesuffix(MIXED)](depth)
    images, labels = torch.rand(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    optimizer = torch.optim.SGD(model.train().parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=name.endswith(MIXED)):
            logits = model(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return step


CONTESTANTS: dict[str, Callable[[int], nn.Module]] = {
    "soc": lambda depth: LipConvnet(depth, width=WIDTH),
    "soc-circular": lambda depth: LipConvnet(depth, width=WIDTH, padding_mode="circular"),
    "bcop": lambda depth: LipConvnet(depth, width=WIDTH, conv="bcop"),
    "algorithm-1": lambda depth: literal(LipConvnet(depth, width=WIDTH)),
    "full-width-bcop": lambda depth: full_width(LipConvnet(depth, width=WIDTH, conv="bcop")),
}


def main() -> None:
    """Measure, write the record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--groups", choices=GROUPS, nargs="+", default=tuple(GROUPS), help="others stay as recorded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    config = {"width": WIDTH, "batch": BATCH, "threads": THREADS, "rounds": arguments.rounds}
    for group in arguments.groups:
        rows: dict[str, dict[str, tuple[float, ...]]] = {}
        for depth in arguments.depths:
            torch.manual_seed(0)
            steps = {name: step_of(name, depth) for name in GROUPS[group]}
            rows[str(depth)] = side_by_side(steps, rounds=arguments.rounds, warmup=1, threads=THREADS)
            *socs, bcop = map(min, rows[str(depth)].values())
            told = ", ".join(f"{soc:.2f} s ({soc / bcop:.2f} of BCOP)" for soc in socs)
            print(f"depth {depth:2}, {group}: {told}, {bcop:.2f} s", flush=True)
        if not arguments.no_record:
            write_record(RECORDS / f"{group}.json", make_record("bench", config=config, seed=0, results={"rows": rows}))


if __name__ == "__main__":
    main()
