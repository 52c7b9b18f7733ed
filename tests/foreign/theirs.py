"""State dicts in the layouts of the authors' LipConvNet and of LConvNet, and what their networks compute, literally.

Written from the mathematics (Algorithm 1 of the paper; block convolutions of Li et al.; Cayley's transform at each
frequency) and from the names and shapes of their entries, as an oracle that shares nothing with the library.
"""

import math
from typing import Any

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


def bcop_state(read: int, kept: int, kernel: int, prefix: str = "", name: str = "conv_matrices") -> State:
    m = max(read, kept)
    # Near to orthogonal, as trained ones are, so that twenty iterations are enough.
    matrices = torch.linalg.qr(normal(2 * kernel - 1, m, m))[0] + 0.05 * normal(2 * kernel - 1, m, m) / math.sqrt(m)
    mask = (torch.arange(m) < m // 2).to(torch.float64).repeat(2 * kernel - 2, 1, 1)
    return {prefix + name: matrices, prefix + "mask": mask, prefix + "bias": normal(kept)}


def cayley_state(read: int, kept: int, kernel: int, prefix: str = "") -> State:
    weight, alpha = normal(kept, read, kernel, kernel), torch.tensor(3.0, dtype=torch.float64)
    return {prefix + "weight": weight, prefix + "bias": normal(kept), prefix + "alpha": alpha}


LAYERS: dict[str, Any] = {"soc": soc_state, "bcop": bcop_state, "cayley": cayley_state}


def network_state(
    conv: str, blocks: int, *, classes: int = 3, activation: str = "maxmin", lln: bool = False, year: int = 2022
) -> State:
    """The state dict of a LipConvNet of width 2: 32 x 32 images, `blocks` convolutions in each of five stages."""
    state: State = {}
    channels, planes = 3, 2
    for stage in range(1, 6):
        for block in range(blocks):
            strided = block == blocks - 1
            out, kernel = (2 * planes, 1 if stage == 5 else 3) if strided else (planes, 3)
            if conv == "cayley" and strided:
                kernel = max(1, kernel // 2)
            prefix = f"layer{stage}.{block}."
            state |= LAYERS[conv](channels * (4 if strided else 1), out, kernel, prefix + "conv.")
            if activation == "hh1":
                state[prefix + "activation.theta"] = normal(1, out // 2, 1, 1)
            channels = out
        planes = channels
    last = "last_layer." if year == 2022 else "final_conv."
    if lln:
        return state | {last + "weight": normal(classes, channels), last + "bias": normal(classes)}
    if conv == "cayley":
        head = cayley_state(channels, classes, 1, last)
        return state | head | {last + "weight": head[last + "weight"][:, :, 0, 0]}
    return state | LAYERS[conv](channels, classes, 1, last)


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


def bjorck(matrix: Tensor, steps: int) -> Tensor:
    w = matrix / torch.linalg.matrix_norm(matrix, 2)
    for _ in range(steps):
        w = 1.5 * w - 0.5 * w @ w.T @ w
    return w


def bcop_filter(matrices: Tensor, read: int, kept: int, steps: int, *, transposes_one_tap: bool = True) -> Tensor:
    """The filter (kept, read, k, k): a product of 2 x 2 blocks of projectors, and an orthogonal matrix."""
    orthogonal = [bjorck(matrix, steps) for matrix in matrices]
    m = len(matrices[0])
    h, half = orthogonal[0][:read, :kept], m // 2
    projectors = [w[:, :half] @ w[:, :half].T for w in orthogonal[1:]]
    filters = (h.T if read > kept else h)[:, :, None, None]
    if not projectors:
        return filters if not transposes_one_tap or read > kept else filters.transpose(0, 1)
    identity = torch.eye(m, dtype=torch.float64)
    for p, q in zip(projectors[::2], projectors[1::2], strict=True):
        filters = sum(
            F.pad(torch.einsum("rmhw,mc->rchw", filters, first @ second), (j, 1 - j, i, 1 - i))
            for i, first in enumerate((p, identity - p))
            for j, second in enumerate((q, identity - q))
        )
    filters = filters.transpose(2, 3)
    return filters if read > kept else filters.transpose(0, 1)


def bcop(state: State, x: Tensor, steps: int) -> Tensor:
    weight = bcop_filter(state["conv_matrices"], x.shape[1], len(state["bias"]), steps)
    margin = weight.shape[-1] // 2
    padded = F.pad(x, (margin,) * 4, mode="circular") if margin else x
    return F.conv2d(padded, weight, state["bias"])


def cayley_transform(w: Tensor) -> Tensor:
    if w.shape[-2] < w.shape[-1]:
        return cayley_transform(w.mH).mH
    n = w.shape[-1]
    u, v, identity = w[..., :n, :], w[..., n:, :], torch.eye(n, dtype=w.dtype)
    a = u - u.mH + v.mH @ v
    inverse = torch.linalg.inv(identity + a)
    return torch.cat([inverse @ (identity - a), -2 * v @ inverse], -2)


def cayley(state: State, x: Tensor) -> Tensor:
    """One Cayley transform at each of all n^2 frequencies; the scale is of the half that rfft2 gives."""
    weight, n = state["weight"], x.shape[-1]
    scale = state["alpha"] / torch.fft.rfft2(weight, (n, n)).norm()
    centre, taps = (weight.shape[-1] - 1) // 2, torch.arange(weight.shape[-1])
    phase = torch.exp(2j * math.pi * torch.outer(torch.arange(n), taps - centre).double() / n)
    symbol = torch.einsum("uh,oihw,vw->uvoi", phase, weight.to(phase.dtype), phase)
    spectrum = torch.einsum("uvoi,niuv->nouv", cayley_transform(scale * symbol), torch.fft.fft2(x))
    return torch.fft.ifft2(spectrum).real + state["bias"].view(-1, 1, 1)


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


def network(state: State, images: Tensor, conv: str, year: int = 2022) -> Tensor:
    """Logits of a LipConvNet in evaluation, for images in [0, 1]."""
    layers = {
        "soc": lambda entries, x: soc(entries, x, 12 if year == 2022 else 10),
        "bcop": lambda entries, x: bcop(entries, x, 20 if year == 2022 else 30),
        "cayley": cayley,
    }
    x, blocks = (images - MEAN) / 0.2507, len({name.split(".")[1] for name in state if name.startswith("layer1.")})
    for stage in range(1, 6):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}."
            x = layers[conv](layer(state, prefix + "conv."), folded(x, 2 if block == blocks - 1 else 1))
            x = activation(layer(state, prefix + "activation."), x, year)
    head = layer(state, "last_layer." if year == 2022 else "final_conv.")
    if set(head) == {"weight", "bias"}:
        return x.flatten(1) @ (head["weight"] / head["weight"].norm(dim=1, keepdim=True)).T + head["bias"]
    if conv == "cayley":
        return x.flatten(1) @ cayley_transform(head["alpha"] * head["weight"] / head["weight"].norm()).T + head["bias"]
    return layers[conv](head, x).flatten(1)
