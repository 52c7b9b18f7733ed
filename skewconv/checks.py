"""Checks of what a user passes in: each refuses with the value received, what is allowed, and the remedy."""

import math
import numbers
from collections.abc import Sequence
from typing import TypeAlias, get_args

import torch
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError

IntOrTuple: TypeAlias = int | Sequence[int]


def check_counts(**counts: int) -> None:
    """Refuse what is not a positive integer, by name."""
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ArgumentError(f"{name} must be an integer >= 1, got {value!r}")


def check_floating(tensor: Tensor, name: str) -> None:
    """Refuse what is not a floating or complex tensor."""
    if not isinstance(tensor, Tensor):
        raise DtypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise DtypeError(f"{name} must be floating or complex, got {tensor.dtype}; convert it with .float()")


def check_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinity. Skipped while compiling, where values are not known."""
    if torch.compiler.is_compiling():
        return
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        bad = int(finite.numel() - finite.sum())
        raise NotFiniteError(f"{name} holds {bad} NaN or infinite value(s) of {tensor.numel()}; all must be finite")


def check_filter(weight: Tensor, name: str = "weight", *, groups: int = 1) -> None:
    """Refuse what is not a finite filter (c_out, c_in / groups, *kernel) with one to three spatial axes."""
    check_floating(weight, name)
    if not 3 <= weight.dim() <= 5:
        raise ShapeError(
            f"{name} must have shape (c_out, c_in / groups, *kernel) with 1 to 3 spatial axes, "
            f"got {tuple(weight.shape)}"
        )
    if weight.numel() == 0:
        raise ShapeError(f"{name} is empty: shape {tuple(weight.shape)}; every size must be at least 1")
    check_counts(groups=groups)
    if weight.shape[0] % groups:
        raise ShapeError(f"groups={groups} does not divide the {weight.shape[0]} output channels of {name}")
    check_finite(weight, name)


def check_square(weight: Tensor, name: str = "weight", *, groups: int = 1) -> None:
    """Refuse a filter that does not have as many output as input channels in each group."""
    check_filter(weight, name, groups=groups)
    if weight.shape[0] != weight.shape[1] * groups:
        raise ShapeError(
            f"{name} must map m channels to m channels, got {weight.shape[0]} out and {weight.shape[1] * groups} in "
            f"(shape {tuple(weight.shape)}, groups={groups}); pad it to m = max of the two"
        )


def check_padding_mode(padding_mode: str) -> None:
    """Refuse padding modes whose Jacobian is not the transpose of the transposed filter's."""
    if padding_mode not in get_args(PaddingMode):
        raise ArgumentError(
            f"padding_mode must be 'zeros' or 'circular', got {padding_mode!r}; reflect and replicate padding "
            "repeat pixels at the border, so that a skew filter no longer has a skew Jacobian"
        )


def check_positive(value: object, name: str) -> float:
    """Refuse what is not a finite number > 0; return it as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Tensor):
        raise ArgumentError(f"{name} must be a number > 0, got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ArgumentError(f"{name} must be a finite number > 0, got {number!r}")
    return number


def per_axis(value: IntOrTuple, axes: int, name: str) -> tuple[int, ...]:
    """One positive integer for each spatial axis, from an integer or a sequence."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    if len(values) != axes or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
        raise ArgumentError(f"{name} must be an integer >= 1, or {axes} of them, got {value!r}")
    return values


def check_same_padding(padding: str | IntOrTuple, kernel: Sequence[int], dilation: Sequence[int]) -> None:
    """Refuse paddings of nn.Conv that would change the size of the image."""
    if padding == "same":
        return
    needed = tuple(d * (k - 1) / 2 for k, d in zip(kernel, dilation, strict=True))
    given = tuple(padding) if isinstance(padding, Sequence) else (padding,) * len(needed)
    if given != needed or any(isinstance(n, bool) for n in given):
        whole = all(n.is_integer() for n in needed)
        allowed = f"'same' or {tuple(map(int, needed))}" if whole else "'same'"
        raise ArgumentError(
            f"padding must be {allowed} for a kernel of size {tuple(kernel)} with dilation {tuple(dilation)}, got "
            f"{padding!r}: the convolution keeps the image size (and divides it by the stride); leave the argument out"
        )
