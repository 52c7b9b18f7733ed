"""For each kind of layer the float64 program that a certificate runs, and a proven bound on its rounding error.

A sum of n products computed in any order errs by at most gamma_n sum |w| |x| (Higham, Accuracy and Stability of
Numerical Algorithms, Lemma 3.1), so a linear layer errs by gamma_n || |W| || ||x||. Sorting, pooling by maxima,
permutations and cuts are exact. Rules are found by exact type, as a subclass may compute anything.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.certify.cayley import cayley_stage
from skewconv.certify.exponential import Exponential
from skewconv.certify.stage import NOTHING, Growth, Stage, identity, stage
from skewconv.errors import UnboundedModuleError
from skewconv.models.lipconvnet import LipConvnet
from skewconv.models.resnet import ResidualBlock, ResNet
from skewconv.nn import (
    BCOP2d,
    Cayley2d,
    GroupSort,
    Householder,
    InvertibleDownsample,
    MaxMin,
    Normalize,
    NormalizedLinear,
    OrthogonalLinear,
    SOC1d,
    SOC2d,
    SOC3d,
    SOCTranspose1d,
    SOCTranspose2d,
    SOCTranspose3d,
    lipschitz_upper_bound,
)
from skewconv.nn.bounds.protocol import reason_to_doubt
from skewconv.nn.bounds.registry import registering
from skewconv.nn.downsample import invertible_downsample, invertible_upsample
from skewconv.nn.soc.skew_conv import SkewConv
from skewconv.ops.convolution import convolve
from skewconv.rigor import (
    ERROR_UP,
    MILLIONS_UP,
    UNIT_ROUNDOFF,
    absolute_norm_upper_bound,
    gamma,
    spectral_norm_upper_bound,
)

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Any, Shape], Stage]
RuleT = TypeVar("RuleT", bound=Rule)

CHAINS: tuple[type[nn.Module], ...] = (nn.Sequential, LipConvnet, ResNet)

_RULES: dict[type[nn.Module], Rule] = {}


def register_rounding(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> Stage for modules of exactly these types, in eval mode and float64.

    >>> class Twice(nn.Module):
    ...     def forward(self, x):
    ...         return 2 * x
    ...     def lipschitz_upper_bound(self, input_shape):
    ...         return 2.0
    >>> @register_rounding(Twice)
    ... def twice(module, input_shape):
    ...     return exact(module, input_shape)
    """
    return registering(_RULES, kinds)


def stage_of(module: nn.Module, input_shape: Shape, path: str = "") -> Stage:
    """The float64 program of a module (in eval mode and float64) with its proven bounds, or a refusal by name."""
    kind = type(module)
    reason = "its rounding error is not known" if kind not in _RULES else reason_to_doubt(module)
    if reason is not None:
        where = f"'{path}'" if path else "the model itself"
        raise UnboundedModuleError(
            f"no certificate can be given for {where} ({kind.__module__}.{kind.__qualname__}): {reason}; register a "
            "rule with skewconv.certify.register_rounding, or replace the module"
        )
    if kind in CHAINS:
        return chain(links(module), input_shape, path)
    return _RULES[kind](module, input_shape)


def chain(layers: Iterable[tuple[str, nn.Module]], input_shape: Shape, path: str = "") -> Stage:
    """Named layers one after the other."""
    total = identity(input_shape)
    for name, child in layers:
        total = total.then(stage_of(child, total.shape, f"{path}.{name}" if path else name))
    return total


def links(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """What a chain runs, named, in order: a module that it holds twice runs twice, one that it does not use never."""
    if isinstance(module, (LipConvnet, ResNet)):
        return [("body", module.body), ("head", module.head)]
    return [(name, child) for name, child in module._modules.items() if child is not None]


def exact(module: nn.Module, input_shape: Shape) -> Stage:
    """A module that rounds nothing."""
    return _with_error(module, input_shape, NOTHING)


def _with_error(module: nn.Module, shape: Shape, error: Growth) -> Stage:
    return stage(module, shape, lipschitz_upper_bound(module, shape), error, _device(module))


def _device(module: nn.Module) -> torch.device:
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


@register_rounding(*CHAINS)
def _chain(module: nn.Module, shape: Shape) -> Stage:
    return chain(links(module), shape)


@register_rounding(
    *(MaxMin, GroupSort, InvertibleDownsample, nn.Identity, nn.Flatten, nn.Unflatten, nn.ReLU, nn.ReLU6, nn.Hardtanh),
    *(nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
)
def _exact(module: nn.Module, shape: Shape) -> Stage:
    return exact(module, shape)


@register_rounding(Normalize)
def _normalize(module: Normalize, shape: Shape) -> Stage:
    # A difference and a quotient, each right to u: 2 u + u^2 of |(x - mean) / std| at most.
    plain = _with_error(module, shape, NOTHING)
    return _with_error(module, shape, plain.norm.times(3 * UNIT_ROUNDOFF))


@register_rounding(SOC1d, SOC2d, SOC3d, SOCTranspose1d, SOCTranspose2d, SOCTranspose3d)
def _skew_conv(module: SkewConv, shape: Shape) -> Stage:
    weight, p = module.weight.detach(), module.polynomial()
    kept = module.read_channels if module.transposed else module.kept_channels
    groups, sign = module.groups, -1.0 if module.transposed else 1.0
    parts = [
        Exponential(part.contiguous(), p, module.geometry, kept // groups, sign) for part in weight.chunk(groups, 0)
    ]
    programs = [part.program() for part in parts]
    bias = None if module.bias is None else module.bias.detach().reshape(-1, *(1,) * module.axes)
    folds, down = max(module.stride) > 1, not module.transposed

    def run(x: Tensor) -> Tensor:
        x = invertible_downsample(x, module.stride) if folds and down else x
        y = torch.cat([f(part) for f, part in zip(programs, x.chunk(groups, 1), strict=True)], 1)
        y = invertible_upsample(y, module.stride) if folds and not down else y
        return y if bias is None else y + bias

    error = Growth(max(part.rounding_error() for part in parts), 0.0)
    lipschitz = lipschitz_upper_bound(module, shape)
    plain = stage(run, shape, lipschitz, error, weight.device)
    # Adding the bias rounds once more.
    rounded = plain.norm.plus(plain.error).times(UNIT_ROUNDOFF)
    return stage(run, shape, lipschitz, error.plus(rounded), weight.device)


@register_rounding(nn.Linear, NormalizedLinear, OrthogonalLinear)
def _linear(module: nn.Linear | NormalizedLinear | OrthogonalLinear, shape: Shape) -> Stage:
    # The matrix is computed once: the certificate is for the matrix as it is, not for the one it should be.
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
    error = _product_error(weight, absolute_norm_upper_bound(weight), bias, torch.Size(shape[:-1]).numel())
    bound = spectral_norm_upper_bound(weight)
    return stage(lambda x: F.linear(x, weight, bias), shape, bound, error, weight.device)


@register_rounding(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, shape: Shape) -> Stage:
    plain = _with_error(module, shape, NOTHING)
    norm, pixels = absolute_norm_upper_bound(module.weight, module.groups), torch.Size(plain.shape[1:]).numel()
    error = _product_error(module.weight.detach(), norm, module.bias, pixels)
    return _with_error(module, shape, error)


@register_rounding(BCOP2d)
def _bcop(module: BCOP2d, shape: Shape) -> Stage:
    weight = module.weight.detach()
    bias = None if module.bias is None else module.bias.detach().view(-1, 1, 1)

    def run(x: Tensor) -> Tensor:
        y = convolve(invertible_downsample(x, (module.stride, module.stride)), weight, padding_mode="circular")
        return y if bias is None else y + bias

    pixels = torch.Size(shape[1:]).numel() // module.stride**2
    error = _product_error(weight, absolute_norm_upper_bound(weight), bias, pixels)
    return stage(run, shape, lipschitz_upper_bound(module, shape), error, weight.device)


def _product_error(weight: Tensor, norm: float, bias: Tensor | None, pixels: int) -> Growth:
    """gamma_n (|| |W| || ||x|| + ||bias||), the bias being spread over the pixels."""
    g = gamma(weight[0].numel() + 2)
    size = 0.0 if bias is None else float(torch.linalg.vector_norm(bias.detach())) * pixels**0.5
    return Growth(g * norm, g * size).times(MILLIONS_UP)


@register_rounding(Cayley2d)
def _cayley(module: Cayley2d, shape: Shape) -> Stage:
    return cayley_stage(module, shape)


@register_rounding(Householder)
def _householder(module: Householder, shape: Shape) -> Stage:
    # A fold takes t = 2 min(0, a s - b c) and (a - t s, b + t c). With sines and cosines right to 2 u, t errs by
    # 2 gamma_6 ||z|| and is at most 2 ||z||: 12 u + 8 u + 2 u and the final roundings stay under 32 u ||z|| a fold.
    return _with_error(module, shape, Growth(32 * UNIT_ROUNDOFF * module.order, 0.0))


@register_rounding(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> Stage:
    bound = lipschitz_upper_bound(module, shape)
    mean = torch.zeros(()) if module.running_mean is None else module.running_mean
    shift = float(torch.linalg.vector_norm(mean)) * bound
    if module.bias is not None:
        shift += float(torch.linalg.vector_norm(module.bias.detach()))
    g = gamma(10)
    error = Growth(g * bound, g * shift * torch.Size(shape[1:]).numel() ** 0.5)
    return _with_error(module, shape, error.times(ERROR_UP))


@register_rounding(
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
def _avg_pool(module: nn.Module, shape: Shape) -> Stage:
    # The weights are not negative, so || |A| || = ||A||; no window is larger than the image and its padding.
    window = torch.Size(shape[1:]).numel() * 4
    error = gamma(window + 4) * lipschitz_upper_bound(module, shape)
    return _with_error(module, shape, Growth(error, 0.0).times(ERROR_UP))


@register_rounding(ResidualBlock)
def _residual_block(module: ResidualBlock, shape: Shape) -> Stage:
    active = stage_of(module.activation, shape, "activation")
    residual = active.then(stage_of(module.residual, active.shape, "residual"))
    if module.shortcut is None:
        return residual.added_to(identity(shape))
    return residual.added_to(active.then(stage_of(module.shortcut, active.shape, "shortcut")))
