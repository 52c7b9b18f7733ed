"""The bounds of torch's own layers, pooling aside."""

import math
from fractions import Fraction

from torch import nn

from skewconv.errors import NotFiniteError
from skewconv.nn.bounds.protocol import NoBoundError, Shape, lipschitz_upper_bound, output_shape, register_bound
from skewconv.ops.norms import norm_upper_bound
from skewconv.rigor import in_double, product_up, spectral_norm_upper_bound, sqrt_up


@register_bound(
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    *(nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Softsign, nn.LogSigmoid),
)
def _one(module: nn.Module, shape: Shape) -> float:
    return 1.0


@register_bound(nn.Sigmoid)
def _sigmoid(module: nn.Sigmoid, shape: Shape) -> float:
    return 0.25


@register_bound(nn.SiLU)
def _silu(module: nn.SiLU, shape: Shape) -> float:
    return 1.1  # the derivative's maximum is 1.09984, at x = 2.39936


@register_bound(nn.GELU)
def _gelu(module: nn.GELU, shape: Shape) -> float:
    return 1.13  # the derivative's maximum is 1.12890 at x = sqrt(2), and 1.12904 for the approximation by tanh


@register_bound(nn.LeakyReLU)
def _leaky_relu(module: nn.LeakyReLU, shape: Shape) -> float:
    return _at_least_one(abs(module.negative_slope))


@register_bound(nn.PReLU)
def _prelu(module: nn.PReLU, shape: Shape) -> float:
    return _at_least_one(float(in_double(module.weight).abs().max()))


@register_bound(nn.ELU)
def _elu(module: nn.ELU, shape: Shape) -> float:
    return _at_least_one(abs(module.alpha))


@register_bound(nn.CELU)
def _celu(module: nn.CELU, shape: Shape) -> float:
    if not module.alpha > 0:
        raise NoBoundError(module, f"with alpha={module.alpha} <= 0 its slope grows without limit")
    return 1.0


@register_bound(nn.SELU)
def _selu(module: nn.SELU, shape: Shape) -> float:
    return 1.7581  # scale * alpha = 1.0507009873... * 1.6732632423...


@register_bound(nn.Softmax)
def _softmax(module: nn.Softmax, shape: Shape) -> float:
    return 0.5  # diag(p) - p p^T has the Gershgorin bound 2 p_i (1 - p_i)


@register_bound(nn.Sequential)
def _sequential(module: nn.Sequential, shape: Shape) -> float:
    factors = []
    children = list(module)
    for position, child in enumerate(children):
        factors.append(lipschitz_upper_bound(child, shape))
        if position + 1 < len(children):
            shape = output_shape(child, shape)
    return product_up(factors)


@register_bound(nn.Linear)
def _linear(module: nn.Linear, shape: Shape) -> float:
    return spectral_norm_upper_bound(module.weight)


@register_bound(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, shape: Shape) -> float:
    # Fewer outputs (stride, cropping) and zeros around the image only restrict the convolution on the whole grid.
    if module.padding_mode == "circular":
        # What the forward reads, (before, after) from the last axis to the first; the attribute padding may be edited.
        pads = module._reversed_padding_repeated_twice
        room = [d * (k - 1) for d, k in zip(module.dilation, module.weight.shape[2:], strict=True)]
        if any(a + b > n for a, b, n in zip(pads[::2], pads[1::2], reversed(room), strict=True)):
            raise NoBoundError(module, "its circular padding is wider than the kernel, so outputs are repeated")
    elif module.padding_mode != "zeros":
        raise NoBoundError(module, f"padding_mode={module.padding_mode!r} repeats pixels at the border")
    return norm_upper_bound(module.weight, groups=module.groups)


@register_bound(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transpose(module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, shape: Shape) -> float:
    return norm_upper_bound(module.weight, groups=module.groups)


@register_bound(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> float:
    if module.running_var is None:
        raise NoBoundError(module, "without running statistics each input is divided by its own deviation")
    variances = in_double(module.running_var).tolist()
    factors = in_double(module.weight).abs().tolist() if module.affine else [1.0] * len(variances)
    if any(not (math.isfinite(v) and v + module.eps > 0) for v in variances) or not all(map(math.isfinite, factors)):
        raise NotFiniteError("BatchNorm holds a NaN or infinite weight, or a running variance that is not positive")
    pairs = zip(factors, variances, strict=True)
    return sqrt_up(max(Fraction(g) ** 2 / (Fraction(v) + Fraction(module.eps)) for g, v in pairs))


def _at_least_one(slope: float) -> float:
    return 1.0 if slope <= 1.0 else slope  # max(1.0, nan) would be 1.0
