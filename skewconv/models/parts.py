"""The parts a model is built from, by name: one literal registry for each kind."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from torch import nn

from skewconv.checks import PaddingMode
from skewconv.errors import ArgumentError
from skewconv.nn import BCOP2d, Cayley2d, GroupSort, Householder, MaxMin, NormalizedLinear, OrthogonalLinear, SOC2d

ConvName: TypeAlias = Literal["soc", "bcop", "cayley", "standard"]
ActivationName: TypeAlias = Literal["maxmin", "groupsort", "householder", "householder2"]
HeadName: TypeAlias = Literal["orthogonal", "normalized"]

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
# One number for all channels, so that the normalisation scales every perturbation alike (Section 8 of the paper).
CIFAR10_STD = 0.2507

T = TypeVar("T")


def _soc(
    c_in: int, c_out: int, kernel: int, stride: int, padding_mode: PaddingMode, options: dict[str, Any]
) -> nn.Module:
    return SOC2d(c_in, c_out, kernel, stride, padding_mode=padding_mode, **options)


def _bcop(
    c_in: int, c_out: int, kernel: int, stride: int, padding_mode: PaddingMode, options: dict[str, Any]
) -> nn.Module:
    return BCOP2d(c_in, c_out, kernel, stride, **options)


def _cayley(
    c_in: int, c_out: int, kernel: int, stride: int, padding_mode: PaddingMode, options: dict[str, Any]
) -> nn.Module:
    return Cayley2d(c_in, c_out, kernel, stride, **options)


def _standard(
    c_in: int, c_out: int, kernel: int, stride: int, padding_mode: PaddingMode, options: dict[str, Any]
) -> nn.Module:
    return nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, padding_mode=padding_mode, **options)


# BCOP and Cayley are circular by construction: the padding mode does not reach them.
CONVOLUTIONS: Mapping[ConvName, Callable[[int, int, int, int, PaddingMode, dict[str, Any]], nn.Module]] = {
    "soc": _soc,
    "bcop": _bcop,
    "cayley": _cayley,
    "standard": _standard,
}

ACTIVATIONS: Mapping[ActivationName, Callable[[int], nn.Module]] = {
    "maxmin": lambda channels: MaxMin(),
    "groupsort": lambda channels: GroupSort(),
    "householder": lambda channels: Householder(channels, order=1),
    "householder2": lambda channels: Householder(channels, order=2),
}

HEADS: Mapping[HeadName, Callable[[int, int], nn.Module]] = {
    "orthogonal": OrthogonalLinear,
    "normalized": NormalizedLinear,
}


def choose(kind: str, registry: Mapping[Any, T], name: str) -> T:
    """The entry of a registry, or an error that lists them."""
    if name not in registry:
        raise ArgumentError(f"{kind} must be one of {', '.join(map(repr, registry))}, got {name!r}")
    return registry[name]


def default_mean(in_channels: int) -> tuple[float, ...]:
    """The mean of CIFAR-10 for three channels, the middle of [0, 1] for others."""
    return CIFAR10_MEAN if in_channels == 3 else (0.5,) * in_channels
