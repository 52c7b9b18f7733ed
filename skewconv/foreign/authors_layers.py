"""Layers of the authors' repository (singlasahil14/SOC), from the entries of their state dicts.

SOC     random_conv_filter (m, m, k, k), bias (c_out), correction (1,), u1, v1, .., u4, v4: vectors of power iterations
BCOP    conv_matrices (2 k - 1, m, m), bias (c_out), mask (2 k - 2, 1, m)
Cayley  weight (c_out, c_in stride^2, k, k), alpha (), bias (c_out)

with m = max(c_in stride^2, c_out).
"""

import math
from typing import Any

import torch
from torch import Tensor

from skewconv.foreign.block_convolutions import bcop_from_matrices
from skewconv.foreign.state import ForeignWeightsError, State, entry
from skewconv.nn import BCOP2d, Cayley2d, SOC2d
from skewconv.ops import norm_upper_bound, skew_filter

#: convolutions that their SOC makes: in training, and in evaluation
TRAIN_TERMS, EVAL_TERMS = 5, 12
# Their factor for kernels larger than 1 x 1; it is stored in float32.
_CORRECTION, _CORRECTION_TOLERANCE = 0.7, 1e-6


def soc_from_authors(
    state: State,
    *,
    in_channels: int | None = None,
    out_channels: int | None = None,
    stride: int = 1,
    eval_terms: int = EVAL_TERMS,
) -> SOC2d:
    """Their SOC layer as a SOC2d: Taylor series of as many convolutions, and the same filter, its norm now proven.

    >>> import torch
    >>> state = {"random_conv_filter": torch.randn(8, 8, 3, 3), "bias": torch.zeros(8), "correction": torch.ones(1)}
    >>> soc_from_authors(state, in_channels=2, stride=2)
    SOC2d(2, 8, kernel_size=(3, 3), stride=(2, 2), norm_bound=3, taylor, ...

    They divide the filter by an estimate of its norm, from vectors that the state dict holds; here it is divided by
    a proven bound. :func:`estimate_share` is the quotient, one where their iteration had converged.

    Args:
        state: the entries of the layer.
        in_channels: the filter's channels / stride^2 by default; where more come out than go in it must be given, as
            the filter does not tell.
        out_channels: the length of the bias by default, or the filter's channels where there is no bias.
        stride: as in their layer.
        eval_terms: convolutions in evaluation: theirs, unless their default of 12 was changed.
    """
    raw = entry(state, "random_conv_filter", "a SOC layer")
    if raw.dim() != 4 or raw.shape[0] != raw.shape[1] or raw.shape[2] != raw.shape[3] or raw.shape[2] % 2 == 0:
        raise ForeignWeightsError(f"'random_conv_filter' has shape {tuple(raw.shape)}: theirs is (m, m, k, k), k odd")
    bias = entry(state, "bias", "a SOC layer") if "bias" in state else None
    channels = {"in_channels": in_channels, "out_channels": out_channels or (None if bias is None else len(bias))}
    options: dict[str, Any] = {"series": "taylor", "train_degree": TRAIN_TERMS, "eval_degree": eval_terms}
    if "correction" in state:
        options["norm_bound"] = float(entry(state, "correction", "a SOC layer")) * raw.shape[2]
    layer = SOC2d.from_filter(raw, stride=stride, bias=bias is not None, **channels, **options)
    copy_bias(layer, bias)
    return layer.eval()


def usual_correction(state: State) -> bool:
    """Whether a SOC layer has the factor that every LipConvnet of the paper has: 0.7, or 1 for 1 x 1 kernels."""
    raw, found = (entry(state, name, "a SOC layer") for name in ("random_conv_filter", "correction"))
    wanted = 1.0 if raw.shape[2] == 1 else _CORRECTION
    return abs(float(found) - wanted) < _CORRECTION_TOLERANCE


def estimate_share(state: State) -> float:
    """Their estimate of the filter's norm, as a share of the proven bound: below one where they had not converged."""
    raw = entry(state, "random_conv_filter", "a SOC layer").to(torch.float64)
    skew = skew_filter(raw)
    estimates = []
    for number in range(1, 5):
        u, v = (entry(state, f"{side}{number}", "a SOC layer").to(torch.float64) for side in "uv")
        estimates.append(float((skew * u * v).sum()))
    return min(estimates) * math.sqrt(math.prod(skew.shape[2:])) / norm_upper_bound(skew, "fantastic-four")


def bcop_from_authors(state: State, *, in_channels: int, stride: int = 1) -> BCOP2d:
    """Their BCOP layer as a BCOP2d: the same filter, its matrices iterated until they are orthogonal.

    Args:
        state: the entries of the layer.
        in_channels: which the entries do not tell where more channels come out than go in.
        stride: as in their layer.
    """
    return bcop_from_matrices(
        entry(state, "conv_matrices", "a BCOP layer"),
        entry(state, "bias", "a BCOP layer") if "bias" in state else None,
        in_channels=in_channels,
        stride=stride,
    )


def cayley_from_authors(state: State, *, size: int, stride: int = 1, kernel_size: int | None = None) -> Cayley2d:
    """Their Cayley layer as a Cayley2d.

    Their learned scale is of the filter's transform at the size of the image; ours is of the filter itself, and
    serves every size. So the size that the layer was trained at has to be told.

    Args:
        state: the entries of the layer.
        size: side of the image that goes into the layer.
        stride: as in their layer, whose kernel is then half as large.
        kernel_size: of the new layer, at least theirs; a smaller filter stands in the middle of it.
    """
    weight, alpha = (entry(state, name, "a Cayley layer") for name in ("weight", "alpha"))
    bias = entry(state, "bias", "a Cayley layer") if "bias" in state else None
    kernel, wanted = weight.shape[-1], kernel_size or weight.shape[-1]
    if kernel > wanted or (wanted - kernel) % 2 or weight.shape[1] % stride**2:
        raise ForeignWeightsError(
            f"'weight' has shape {tuple(weight.shape)}: it does not fit stride {stride} and a kernel of {wanted}"
        )
    side = size // stride
    share = weight.norm() / torch.fft.rfft2(weight, (side, side)).norm()
    margin = (wanted - kernel) // 2
    channels = weight.shape[1] // stride**2, weight.shape[0]
    layer = Cayley2d(*channels, wanted, stride, bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        layer.raw_weight.copy_(torch.nn.functional.pad(weight, (margin,) * 4))
        layer.alpha.copy_(alpha * share)
    copy_bias(layer, bias)
    return layer.eval()


def copy_bias(layer: Any, bias: Tensor | None) -> None:
    """Give a layer its bias, if there is one."""
    if bias is None:
        return
    if bias.shape != layer.bias.shape:
        raise ForeignWeightsError(f"'bias' has shape {tuple(bias.shape)}: the layer needs {tuple(layer.bias.shape)}")
    with torch.no_grad():
        layer.bias.copy_(bias)
