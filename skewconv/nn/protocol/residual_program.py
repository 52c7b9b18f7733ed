"""The float64 program of a residual step x - 2 W S relu(W^T x + b), and the rounding errors of its two convolutions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.nn.protocol.float64_convolution import float64_convolution
from skewconv.nn.protocol.products import spread_norm_up
from skewconv.nn.protocol.program import Float64Program, Growth, proven_program
from skewconv.nn.protocol.rules import Shape
from skewconv.ops.downsample import invertible_downsample
from skewconv.ops.residual import adjoint_filter
from skewconv.rigor import UNIT_ROUNDOFF, absolute_norm_upper_bound, gamma


def fitted(x: Tensor, stride: int, channels: int) -> Tensor:
    """psi, and zeros for the channels that are missing: (n, c, h, w) -> (n, channels, h / stride, w / stride)."""
    z = invertible_downsample(x, (stride, stride)) if stride > 1 else x
    missing = channels - z.shape[1]
    return F.pad(z, (0, 0, 0, 0, 0, missing)) if missing else z


def residual_program(
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    input_shape: Shape,
    out_channels: int,
    *,
    stride: int,
    padding_mode: PaddingMode,
    lipschitz: float,
    norm: float = 1.0,
) -> Float64Program:
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi for tensors in float64, as they are.

    With N = || |W| || and B the norm of b on all pixels, h = W^T x + b has norm <= N ||x|| + B and errs by e =
    gamma (N ||x|| + B). Through W S that is at most ||W S^(1/2)|| s^(1/2) e, s the largest of S. The product with 2 S
    and the second convolution err by gamma N 2 s (||h|| + e), the difference by u of its size.

    Args:
        weight: the filter of W^T, (hidden, channels, k, k).
        scale: the diagonal of S, (hidden,) or ().
        bias: b, (hidden,) or None.
        out_channels: the first channels, which are kept.
        lipschitz: a proven bound of the whole map.
        norm: a proven bound of ||W S^(1/2)||.
    """
    weight, scale = weight.detach(), scale.detach()
    there, back = (float64_convolution(w, padding_mode) for w in (weight, adjoint_filter(weight)))
    shift = None if bias is None else bias.detach().view(-1, 1, 1)
    twice = 2 * (scale.view(-1, 1, 1) if scale.dim() else scale)

    def run(x: Tensor) -> Tensor:
        z = fitted(x, stride, weight.shape[1])
        h = there(z) if shift is None else there(z) + shift
        return (z - back(twice * h.clamp_min(0)))[:, :out_channels].contiguous()

    absolute, largest = absolute_norm_upper_bound(weight), float(scale.max())
    pixels = torch.Size(input_shape[1:]).numel() // stride**2
    hidden = Growth(absolute, spread_norm_up(bias, len(weight) * pixels))
    first = hidden.times(gamma(weight[0].numel() + 4))
    second = hidden.plus(first).times(2 * largest * absolute * gamma(weight[:, 0].numel() + 8))
    error = first.times(2 * norm * math.sqrt(largest)).plus(second)
    plain = proven_program(run, input_shape, lipschitz, error, weight.device)
    error = error.plus(plain.norm.plus(error).times(UNIT_ROUNDOFF))
    inner = hidden.times(max(1.0, 2 * largest * max(1.0, absolute)))
    return proven_program(run, input_shape, lipschitz, error, weight.device, inner=inner)
