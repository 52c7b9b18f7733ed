"""State dicts in the layout of the authors' LipConvNet, and what their networks compute, literally.

Written from Algorithm 1 of the paper and from the names and shapes of their entries, as an oracle that shares nothing
with the library.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
MEAN = torch.tensor([0.4914, 0.4822, 0.4465], dtype=torch.float64).view(3, 1, 1)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def soc_state(read: int, kept: int, kernel: int, prefix: str = "") -> State:
    m = max(read, kept)
    raw = normal(m, m, kernel, kernel) / math.sqrt(m)
    skew = 0.5 * (raw - raw.transpose(0, 1).flip(2, 3))
    vectors = {}
    # Which axes (out, in, height, width) belong to v, the others to u; both keep four axes.
    for number, rows in ((1, (0, 2)), (2, (0, 3)), (3, (0,)), (4, (1,))):
        columns = tuple(axis for axis in range(4) if axis not in rows)
        matrix = skew.permute(*rows, *columns).reshape(math.prod(skew.shape[axis] for axis in rows), -1)
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        vectors[f"v{number}"] = left[:, 0].reshape([skew.shape[a] if a in rows else 1 for a in range(4)])
        vectors[f"u{number}"] = right[0].reshape([1 if a in rows else skew.shape[a] for a in range(4)])
    correction = torch.tensor([1.0 if kernel == 1 else 0.7], dtype=torch.float64)
    entries = {"random_conv_filter": raw, **vectors, "correction": correction, "bias": normal(kept)}
    return {prefix + name: value for name, value in entries.items()}


def network_state(
    blocks: int, *, classes: int = 3, activation: str = "maxmin", lln: bool = False, year: int = 2022
) -> State:
    """The state dict of a LipConvNet of width 2: 32 x 32 images, `blocks` convolutions in each of five stages."""
    state: State = {}
    channels, planes = 3, 2
    for stage in range(1, 6):
        for block in range(blocks):
            strided = block == blocks - 1
            out, kernel = (2 * planes, 1 if stage == 5 else 3) if strided else (planes, 3)
            prefix = f"layer{stage}.{block}."
            state |= soc_state(channels * (4 if strided else 1), out, kernel, prefix + "conv.")
            if activation == "hh1":
                state[prefix + "activation.theta"] = normal(1, out // 2, 1, 1)
            channels = out
        planes = channels
    last = "last_layer." if year == 2022 else "final_conv."
    if lln:
        return state | {last + "weight": normal(classes, channels), last + "bias": normal(classes)}
    return state | soc_state(channels, classes, 1, last)


def layer(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def folded(x: Tensor, stride: int) -> Tensor:
    """(n, c, h, w) -> (n, c stride^2, h / stride, w / stride), pixel by pixel."""
    parts = [x[:, c, i::stride, j::stride] for c in range(x.shape[1]) for i in range(stride) for j in range(stride)]
    return torch.stack(parts, 1)


def soc(state: State, x: Tensor, terms: int) -> Tensor:
    """Algorithm 1, with the norm that their stored vectors give."""
    raw = state["random_conv_filter"]
    skew = 0.5 * (raw - raw.transpose(0, 1).flip(2, 3))
    norm = min(float((skew * state[f"u{i}"] * state[f"v{i}"]).sum()) for i in (1, 2, 3, 4))
    weight = state["correction"] * skew / norm
    term = F.pad(x, (0, 0, 0, 0, 0, len(raw) - x.shape[1]))
    total = term
    for number in range(1, terms + 1):
        term = F.conv2d(term, weight, padding=raw.shape[2] // 2) / number
        total = total + term
    kept = len(state["bias"])
    return total[:, :kept] + state["bias"].view(-1, 1, 1)


def activation(state: State, x: Tensor, year: int) -> Tensor:
    a, b = x.chunk(2, 1)
    if "theta" in state:
        theta = state["theta"]
        # Points on one side of the line at half the angle are reflected in it.
        side = a * torch.sin(theta / 2) - b * torch.cos(theta / 2) > 0
        turned = a * torch.cos(theta) + b * torch.sin(theta), a * torch.sin(theta) - b * torch.cos(theta)
        return torch.cat([torch.where(side, turned[0], a), torch.where(side, turned[1], b)], 1)
    halves = torch.maximum(a, b), torch.minimum(a, b)
    return torch.cat(halves if year == 2022 else halves[::-1], 1)


def network(state: State, images: Tensor, year: int = 2022) -> Tensor:
    """Logits of a LipConvNet in evaluation, for images in [0, 1]."""
    terms = 12 if year == 2022 else 10
    x, blocks = (images - MEAN) / 0.2507, len({name.split(".")[1] for name in state if name.startswith("layer1.")})
    for stage in range(1, 6):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}."
            x = soc(layer(state, prefix + "conv."), folded(x, 2 if block == blocks - 1 else 1), terms)
            x = activation(layer(state, prefix + "activation."), x, year)
    head = layer(state, "last_layer." if year == 2022 else "final_conv.")
    if set(head) == {"weight", "bias"}:
        return x.flatten(1) @ (head["weight"] / head["weight"].norm(dim=1, keepdim=True)).T + head["bias"]
    return soc(head, x, terms).flatten(1)
