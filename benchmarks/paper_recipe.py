"""Claim: `--scale paper` trains as the literal Algorithm 1 with its authors' choices does.

What against what: LipConvnet-5 of width 32 by the preset lipconvnet-5/soc/cifar10 (SGD 0.1, momentum 0.9, decay 1e-4,
batch 128, crops and flips, Taylor of degree 5), and the same network of skewconv.bench's literal layers: all of M as a
parameter, L = (M - conv_transpose(M)) / 2, four norms by power iteration (50 steps at the start, one a pass, 50 every
200), plain autograd, a last layer that is a convolution of one tap. Both start from the same normalised filters and
take every batch in turn, so that their losses can be compared step by step; then both are evaluated on the test images.
On images of 2 x 2 pixels the literal layer multiplies by the matrix of its convolution, the same map in half the time.
Writes benchmarks/records/reproduce/paper-recipe/run.json with versions and machine; `make results` shows and plots it.
A checkpoint every 20 steps lets a run that was stopped resume.

Run: python benchmarks/paper_recipe.py --checkpoint PATH [--epochs 2] [--threads 2] [--width 32]
"""

import argparse
import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.algorithm_1 import LiteralSOC, literal
from skewconv.config import TrainConfig
from skewconv.nn import SOC2d
from skewconv.nn.soc.skew_parametrization import assemble
from skewconv.ops import truncation_error
from skewconv.records import make_record, write_record
from skewconv.train.checkpoint import DataFacts, build_model
from skewconv.train.data import Augmentation, Batches, Dataset, load_dataset
from skewconv.train.presets import preset

HERE = Path(__file__).parent
RECORD = HERE / "records" / "reproduce" / "paper-recipe" / "run.json"


class DenseLiteral(LiteralSOC):
    """The literal layer; a filter that is larger than the image is applied as the matrix of its convolution."""

    least_steps: int

    def _power_steps(self, skew: Tensor, count: int) -> None:
        super()._power_steps(skew, max(count, self.least_steps))

    def _product(self, weight: Tensor, size: torch.Size) -> Callable[[Tensor], Tensor]:
        if size != (2, 2) or weight.shape[2] != 3 or self.circular:
            return super()._product(weight, size)
        # Output pixel (i, j) reads input pixel (k, h) through tap (k - i + 1, h - j + 1).
        pixels = [(i, j) for i in (0, 1) for j in (0, 1)]
        rows = [torch.stack([weight[:, :, k - i + 1, h - j + 1] for k, h in pixels], 2) for i, j in pixels]
        matrix = torch.stack(rows, 1).flatten(2).flatten(0, 1)
        return lambda x: (x.flatten(1) @ matrix.T).view_as(x)


def twin_of(model: nn.Module, power_steps: int = 1) -> nn.Module:
    """The literal network with the same normalised filters and biases, at the size of the authors' parameters."""
    twin = literal(copy.deepcopy(model))
    for layer in twin.modules():
        if type(layer) is LiteralSOC:
            layer.__class__ = DenseLiteral
            layer.least_steps = power_steps
    theirs = [layer for layer in twin.modules() if isinstance(layer, LiteralSOC)]
    ours = [layer for layer in model.modules() if isinstance(layer, SOC2d)]
    with torch.no_grad():
        for soc, other in zip(ours, theirs, strict=True):
            other.filter.copy_(assemble(soc._half(soc._filter_parameters())) / math.sqrt(2))
            other.bias.copy_(soc.bias)
            other._power_steps(other._skew(), 50)
    return twin


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """One step of SGD; the loss before it."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def accuracy(model: nn.Module, batches: Batches) -> float:
    """The share of test images whose class is right, in eval mode."""
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
    model.train()
    return right / 10_000


def both(config: TrainConfig, data: Dataset, power_steps: int = 1) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """The two networks with equal filters, and their optimizers."""
    torch.manual_seed(config.seed)
    ours = build_model(config, DataFacts.of(data)).train()
    networks = {"ours": ours, "literal": twin_of(ours, power_steps).train()}
    o = config.optim
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay)
        for name, model in networks.items()
    }
    return networks, optimizers


def epoch_batches(config: TrainConfig, data: Dataset, epoch: int) -> Batches:
    """The batches of an epoch of the recipe, the last, smaller one included."""
    augment = Augmentation(padding=4, flip=True)
    return Batches(data.train, 128, seed=config.seed, epoch=epoch, augment=augment, drop_last=False)


def largest_difference(config: TrainConfig, data: Dataset, power_steps: int) -> float:
    """Of the first 20 losses, with this number of power steps in each pass of the literal layers."""
    networks, optimizers = both(config, data, power_steps)
    found = []
    for (images, labels), _ in zip(epoch_batches(config, data, 0), range(20), strict=False):
        ours, literal = (step(model, optimizers[name], images, labels) for name, model in networks.items())
        found.append(abs(ours - literal))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--checkpoint", type=Path, required=True, help="where to keep the state of both networks")
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = preset("lipconvnet-5/soc/cifar10")
    config = replace(config, model=replace(config.model, width=arguments.width))
    data = load_dataset("cifar10")
    networks, optimizers = both(config, data)
    state: dict[str, Any] = {"step": 0, "losses": {name: [] for name in networks}, "accuracy": {}, "passes": []}
    literal_layers = [layer for layer in networks["literal"].modules() if isinstance(layer, LiteralSOC)]
    if arguments.checkpoint.exists():
        state = torch.load(arguments.checkpoint, weights_only=True)
        for name in networks:
            networks[name].load_state_dict(state["models"][name])
            optimizers[name].load_state_dict(state["optimizers"][name])
        for layer, passes in zip(literal_layers, state["passes"], strict=True):
            layer.passes = passes
    losses, steps = state["losses"], math.ceil(len(data.train.labels) / 128)
    for epoch in range(state["step"] // steps, arguments.epochs):
        for index, (images, labels) in enumerate(epoch_batches(config, data, epoch)):
            if epoch * steps + index < state["step"]:
                continue
            for name, model in networks.items():
                losses[name].append(step(model, optimizers[name], images, labels))
            state["step"] += 1
            if state["step"] % 20 == 0 or index == steps - 1:
                shown = {name: round(sum(each[-20:]) / len(each[-20:]), 4) for name, each in losses.items()}
                print(f"step {state['step']}: {shown}", flush=True)
                state["models"] = {name: model.state_dict() for name, model in networks.items()}
                state["optimizers"] = {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
                state["passes"] = [layer.passes for layer in literal_layers]
                torch.save(state, arguments.checkpoint.with_suffix(".new"))
                arguments.checkpoint.with_suffix(".new").replace(arguments.checkpoint)
    for name, model in networks.items():
        test = Batches(data.test, 250, seed=0, shuffle=False, drop_last=False)
        state["accuracy"][name] = accuracy(model, test)
    print(f"test accuracy {state['accuracy']}", flush=True)
    first = [abs(a - b) for a, b in zip(losses["ours"][:20], losses["literal"][:20], strict=True)]
    results = {
        "losses": losses,
        "test_accuracy": state["accuracy"],
        "first_20_losses": {
            "first": first[0],
            "literal": max(first),
            "converged": largest_difference(config, data, 50),
            "truncation_error": truncation_error(2.1, 5),
        },
    }
    settings = {"preset": "lipconvnet-5/soc/cifar10", "width": arguments.width, "epochs": arguments.epochs}
    settings["threads"] = arguments.threads
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_record(arguments.out, make_record("bench", config=settings, seed=config.seed, results=results))


if __name__ == "__main__":
    main()
