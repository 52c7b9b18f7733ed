"""The Lipschitz protocol: a proven l2 bound for every module, or a refusal that names the module.

A module takes part by a method ``lipschitz_upper_bound(input_shape) -> float`` (input_shape without the batch axis) that
bounds its map in eval mode. Plain PyTorch modules cannot carry one; for those there are rules, found by exact type: a
subclass may compute anything.
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError, UnboundedModuleError
from skewconv.ops._eigen import OUTWARD, gamma, in_double, spectral_norm_upper_bound
from skewconv.ops.checks import IntOrTuple, per_axis
from skewconv.ops.norms import norm_upper_bound

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Any, Shape], float]
RuleT = TypeVar("RuleT", bound=Rule)

_RULES: dict[type[nn.Module], Rule] = {}


class _UnboundedError(UnboundedModuleError):
    """Remembers the module, so that every enclosing model can lengthen the path to it."""

    def __init__(self, module: nn.Module, reason: str, path: str = "") -> None:
        self.module, self.reason = module, reason
        where = f"'{path}'" if path else "the model itself"
        kind = type(module)
        super().__init__(
            f"no Lipschitz bound is known for {where} ({kind.__module__}.{kind.__qualname__}): {reason}; give the class a "
            "method lipschitz_upper_bound(input_shape) -> float, register a rule with skewconv.nn.register_bound, or "
            "replace the module"
        )

    def seen_from(self, model: nn.Module) -> "_UnboundedError":
        paths = (name for name, module in model.named_modules() if module is self.module)
        return _UnboundedError(self.module, self.reason, next(paths, ""))


def lipschitz_upper_bound(model: nn.Module, input_shape: Iterable[int]) -> float:
    """L with ||f(x) - f(y)|| <= L ||x - y|| for all x, y: proved, for the map f that the model computes in eval mode.

    >>> from torch import nn
    >>> lipschitz_upper_bound(nn.Sequential(nn.Flatten(), nn.ReLU()), (3, 8, 8))
    1.0

    Args:
        model: a module with a method ``lipschitz_upper_bound``, or of a registered type. Its weights, buffers and
            training flags are left as they are.
        input_shape: the shape of one input, without the batch axis.

    The bound is of the map in exact arithmetic with the weights as stored; the rounding of an evaluation is not in it.
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    shape = tuple(input_shape)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shape):
        raise ShapeError(f"input_shape must hold integers >= 1, without the batch axis, got {shape}")
    try:
        bound = _bound(model, shape)
    except _UnboundedError as error:
        raise error.seen_from(model) from None
    if not (math.isfinite(bound) and bound >= 0):
        raise NotFiniteError(f"the Lipschitz bound of {type(model).__name__} is {bound}; are its weights finite?")
    return bound


def _bound(model: nn.Module, shape: Shape) -> float:
    if model._forward_hooks or model._forward_pre_hooks:
        raise _UnboundedError(model, "it has forward hooks, which may change what it computes")
    method = getattr(model, "lipschitz_upper_bound", None)
    if callable(method):
        return float(method(shape))
    rule = _RULES.get(type(model))
    if rule is None:
        raise _UnboundedError(model, "its type is not registered (a subclass of a registered type does not count)")
    if "forward" in vars(model):
        raise _UnboundedError(model, "its forward was replaced on the instance")
    return float(rule(model, shape))


def register_bound(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> float that bounds modules of exactly these types.

    >>> from torch import nn
    >>> class Half(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @register_bound(Half)
    ... def half(module, input_shape):
    ...     return 0.5
    >>> lipschitz_upper_bound(Half(), (3,))
    0.5
    """
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ArgumentError(f"register_bound takes subclasses of torch.nn.Module, got {kind!r}")
        if kind in _RULES:
            raise ArgumentError(f"a bound is already registered for {kind.__qualname__}; it is not replaced silently")

    def register(rule: RuleT) -> RuleT:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def output_shape(module: nn.Module, input_shape: Shape) -> Shape:
    """The shape of one output in eval mode, by running zeros; flags, buffers and random numbers stay as they were."""
    flags = [(m, m.training) for m in module.modules()]
    tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point() or t.is_complex()]
    like = tensors[0] if tensors else torch.empty(0)
    x = torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)
    generators = [] if x.device.type == "cpu" else [x.device]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        for m, _ in flags:
            m.training = False
        with torch.no_grad(), torch.random.fork_rng(generators, device_type=x.device.type if generators else "cuda"):
            y = torch.func.functional_call(module, buffers, (x,))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShapeError(f"{type(module).__name__} does not take an input of shape {input_shape}: {error}") from error
    finally:
        for m, training in flags:
            m.training = training
    if not isinstance(y, Tensor):
        raise _UnboundedError(module, f"it returns a {type(y).__name__} instead of one tensor")
    return tuple(y.shape[1:])


def round_up(value: Fraction) -> float:
    """The least float64 >= value."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def product_up(factors: Iterable[float]) -> float:
    """The product of non-negative bounds, each step rounded up; ones stay exactly one.

    >>> product_up([1.0, 1.0]), product_up([0.1] * 3) > 0.1**3
    (1.0, True)
    """
    product = 1.0
    for factor in factors:
        exact = math.isfinite(product) and math.isfinite(factor)
        product = round_up(Fraction(product) * Fraction(factor)) if exact else product * factor
    return product


def sqrt_up(value: Fraction) -> float:
    """A float64 >= the square root, within two units in the last place."""
    root = math.sqrt(round_up(value))
    return root if Fraction(root) ** 2 >= value else math.nextafter(root, math.inf)


def gram_defect(matrix: Tensor, square: float = 1.0) -> float:
    """An upper bound of ||A^H A - s I||, or of ||A A^H - s I|| if A is wide, rounding included; max over the batch.

    Args:
        matrix: (*batch, rows, columns), floating or complex.
        square: s, the square that the singular values should have.
    """
    a = in_double(matrix.reshape(-1, *matrix.shape[-2:]))
    if not bool(torch.isfinite(a).all()):
        return math.nan
    tall = a if a.shape[-2] >= a.shape[-1] else a.mH
    residual = tall.mH @ tall - square * torch.eye(tall.shape[-1], dtype=a.dtype)
    # |fl(A^H A) - A^H A| <= gamma_k |A|^H |A| entry by entry (Higham, section 3.5), of norm <= gamma_k ||A||_F^2.
    frobenius = float(torch.linalg.vector_norm(a, dim=(-2, -1)).square().max())
    rounding = gamma(tall.shape[-2] + 4, is_complex=a.is_complex()) * frobenius * (1 + 1e-6)
    return (spectral_norm_upper_bound(residual) + rounding) * OUTWARD


def non_expansive(
    exact: Tensor, dtype: torch.dtype, defect: Callable[[Tensor, float], float] = gram_defect
) -> tuple[float, tuple[float, float]]:
    """A scale just below one with which ``(exact * scale).to(dtype)`` is proved to have gain <= 1, and its (min, max) gain.

    If ||A^H A - s I|| <= e, the singular values of A lie between sqrt(s - e) and sqrt(s + e). The proof is of the
    rounded tensor, and scaling rounds anew, so it is repeated until s + e <= 1. A tensor too far from orthogonal keeps
    its scale, and the gain returned says what it is.

    Args:
        exact: close to orthogonal, in float64 or complex128.
        dtype: what the layer stores.
        defect: (tensor, s) -> an upper bound e.
    """
    square = 1.0
    for _ in range(5):
        scale = math.sqrt(square)
        e = defect((exact * scale).to(dtype), square)
        if square + e <= 1.0 or not e < 0.5:
            break
        square = 1.0 - 1.01 * e
    if not math.isfinite(e):
        return scale, (math.nan, math.nan)
    exact_square = Fraction(square)
    low = math.sqrt(max(0.0, square - e)) - 4 * math.ulp(1.0)
    return scale, (max(0.0, low), sqrt_up(exact_square + Fraction(e)))


def _unbounded_circular(module: nn.Module, reach: Iterable[tuple[int, int]]) -> None:
    """Refuse circular padding wider than the kernel needs: the extra outputs repeat others."""
    if any(padded > needed for padded, needed in reach):
        raise _UnboundedError(module, "its circular padding is wider than the kernel, so that outputs are repeated")
