"""The layer all skew orthogonal convolutions share: its polynomial, the maps, and what is proven of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple, check_same_padding, check_square, per_axis
from skewconv.choices import NormName, PaddingMode
from skewconv.errors import ArgumentError, DtypeError, NotInvertibleError, ShapeError
from skewconv.nn.primitives import Choice
from skewconv.nn.soc.lowered import lowered_exactly, skew_conv_choices
from skewconv.nn.soc.skew_filter import SkewFilter
from skewconv.nn.soc.skew_parametrization import free_half, proven_norm
from skewconv.ops.convolution import Geometry, skew_filter
from skewconv.ops.convolution_exponential import AUTO, apply_polynomial, check_engine
from skewconv.ops.norms import norm_upper_bound, norm_upper_bound_at
from skewconv.ops.permutations import invertible_downsample, invertible_upsample
from skewconv.ops.polynomials import Polynomial, non_expansive_polynomial, polynomial, training_polynomial
from skewconv.ops.series import DEFAULT_SERIES, TRAINING_SERIES
from skewconv.ops.torch_modes import autocasting, elementwise, in_format_of, uncompiled

TRAIN_TOL = 0.03
EVAL_TOL = 1e-6
# Of an inverse in training: each takes as long as a forward pass and a backward one.
_MOST_ITERATIONS = 100

Layer = TypeVar("Layer", bound="SkewConv")


@dataclass(frozen=True)
class PolynomialSpec:
    """Which polynomial stands for the exponential: of a degree, or the shortest that a tolerance allows."""

    series: str
    degree: int | None
    tol: float
    non_expansive: bool


@lru_cache(maxsize=1024)
def polynomial_for(spec: PolynomialSpec, norm_bound: float) -> Polynomial:
    if spec.degree is not None:
        return polynomial(norm_bound, spec.degree, spec.series)
    build = non_expansive_polynomial if spec.non_expansive else training_polynomial
    return build(norm_bound, spec.tol, spec.series)


class SkewConv(SkewFilter):
    """S = keep o exp(J) o pad o psi: the map all layers of this family share; see :class:`skewconv.nn.SOC2d`."""

    transposed: ClassVar[bool] = False

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple = 1,
        padding: str | IntOrTuple = "same",
        dilation: IntOrTuple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        series: str = DEFAULT_SERIES,
        train_series: str | None = None,
        train_degree: int | None = None,
        eval_degree: int | None = None,
        train_tol: float | None = None,
        eval_tol: float = EVAL_TOL,
        accurate: bool = False,
        norm_bound: float | None = None,
        norm: NormName = "tracked",
        init_scale: float = 1.0,
        learn_scale: float | None = None,
        engine: str = AUTO,
        recompute: bool = False,
        degree: None = None,
    ) -> None:
        if degree is not None:
            raise ArgumentError(f"degree is {degree}: give train_degree, eval_degree or both")
        if accurate and any(given is not None for given in (train_series, train_degree, train_tol)):
            raise ArgumentError(
                "accurate=True trains with the polynomial of evaluation, so that train_series, train_degree and "
                "train_tol have no meaning; set eval_tol or eval_degree, or leave accurate out"
            )
        if series == TRAINING_SERIES:
            raise ArgumentError(f"series={series!r} is a polynomial of training: give it as train_series")
        if train_series is None:
            train_series = series if series == "taylor" else TRAINING_SERIES
        # Neither an accurate polynomial nor Taylor's of a fixed degree depends on the norm.
        follows = not accurate and not (train_series == "taylor" and train_degree is not None)
        counts = {"groups": groups, "in_channels": in_channels, "out_channels": out_channels}
        groups, in_channels, out_channels = (per_axis(value, 1, name)[0] for name, value in counts.items())
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if value % groups:
                raise ArgumentError(f"{name}={value} is not divisible by groups={groups}; each group needs as many")
        kernel, strides = per_axis(kernel_size, self.axes, "kernel_size"), per_axis(stride, self.axes, "stride")
        geometry = Geometry.of(kernel, padding_mode, dilation, groups)
        check_same_padding(padding, kernel, geometry.dilation)
        # What exp(J) reads and what is kept of it; the adjoint layers run the other way.
        wide, kept = (out_channels, in_channels) if self.transposed else (in_channels, out_channels)
        read = wide * math.prod(strides)
        check_engine(engine, geometry)
        norm = norm if follows else "bound"
        super().__init__(max(read, kept), kernel, groups, norm_bound, norm, init_scale, learn_scale, device, dtype)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.read_channels, self.kept_channels = read, kept
        self.stride, self.padding, self.padding_mode = strides, "same", padding_mode
        self.geometry, self.dilation = geometry, geometry.dilation
        self.engine, self.recompute = engine, recompute
        self.bias = nn.Parameter(self.centre.new_empty(out_channels)) if bias else None
        self.eval_polynomial = self.train_polynomial = PolynomialSpec(series, eval_degree, eval_tol, True)
        if not accurate:
            tol = TRAIN_TOL if train_tol is None else train_tol
            self.train_polynomial = PolynomialSpec(train_series, train_degree, tol, False)
        for spec in (self.train_polynomial, self.eval_polynomial):
            polynomial_for(spec, self.proven_norm_bound(scaled=False))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the filter as the paper's authors do, the bias as nn.Conv does, and converge the power vectors."""
        super().reset_parameters()
        if self.bias is not None:
            limit = 1 / math.sqrt(self.read_channels // self.groups * math.prod(self.kernel_size))
            with torch.no_grad():
                (torch.view_as_real(self.bias) if self.is_complex else self.bias).uniform_(-limit, limit)

    def polynomial(self, *, training: bool = False, dtype: torch.dtype | None = None) -> Polynomial:
        """The polynomial of evaluation or training for a filter rounded to a dtype, with its proven error and gain."""
        interval = self.proven_norm_bound(dtype, scaled=not training)
        if training and self.tracked_norm is not None:
            interval = min(interval, self.tracked_norm.interval)
        return polynomial_for(self.train_polynomial if training else self.eval_polynomial, interval)

    def size_met(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The size of the images that the exponential sees, for inputs of this shape, (channels, *size)."""
        _, *size = input_shape
        if len(size) != self.axes or min(size) < 1:
            raise ShapeError(f"input_shape must be (channels, *size) with {self.axes} spatial axes, got {input_shape}")
        strides = (1,) * self.axes if self.transposed else self.stride
        if any(n % s for n, s in zip(size, strides, strict=True)):
            raise ShapeError(f"the image size {tuple(size)} must be divisible by the stride {self.stride}")
        return tuple(n // s for n, s in zip(size, strides, strict=True))

    def norm_at(self, size: tuple[int, ...]) -> float:
        """A proven bound of the norm of the filter of evaluation on images of this size."""
        weight, g = self.weight.detach(), self.geometry
        options: dict[str, Any] = {"padding_mode": g.padding_mode, "dilation": g.dilation, "groups": g.groups}
        return self._norm_cache.get(self, [weight], size, lambda: norm_upper_bound_at(weight, size, **options))

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """Proven (min, max) of ||S x|| / ||x|| over all x, for the linear map S of the present mode, on any image.

        In evaluation the maximum is at most one unless ``eval_degree`` fixed a polynomial that exceeds it. In training
        the norm of the filter as it is scaled now is proven anew. The minimum is zero where channels are cut off.
        """
        if self.training:
            weight = self._filter().detach()
            norm, _ = proven_norm(weight, self.groups)
            if self.tracked_norm is not None:
                # The interval follows the norm itself, which only a tight bound does not overshoot.
                norm = min(norm, norm_upper_bound(weight, groups=self.groups))
            # Rounded up to few digits, as exact arithmetic slows down with every bit.
            low, high = self.polynomial(training=True).gain_within(math.ceil(norm * 2**20) / 2**20)
        else:
            low, high = self.polynomial().gain
        return low if self._is_injective() else 0.0, high

    def _is_injective(self) -> bool:
        read, kept = self.read_channels, self.kept_channels
        return read >= kept if self.transposed else kept >= read

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        """The recurrence of eval mode; or, within a tolerance, matrices or the fewest convolutions that suffice."""
        return lowered_exactly(self, input_shape) if tol is None else next(self.choices(input_shape, tol)).build()

    def choices(self, input_shape: tuple[int, ...], tol: float) -> Iterator[Choice]:
        """Every form within a tolerance, the one that is expected to be fastest first."""
        return skew_conv_choices(self, input_shape, tol)

    @uncompiled
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x, step=True)
        if self.bias is not None:
            wide = elementwise(y)
            y = (wide + self._bias_of(wide)).to(y.dtype)
        return in_format_of(x, y, self)

    @uncompiled
    def adjoint(self, y: Tensor) -> Tensor:
        """S^H y for the linear map S of the layer, without bias: <S x, y> = <x, S^H y>."""
        return in_format_of(y, self.linear(y, adjoint=True), self)

    @uncompiled
    def inverse(self, y: Tensor) -> Tensor:
        """The x with forward(x) = y in the present mode, to the error of evaluation; y must be in the layer's range.

        In evaluation this is the adjoint. In training the polynomial may be a coarse one, and its adjoint is not its
        inverse: the adjoint is then iterated as often as the proven gain asks for (seven times by default, never with
        ``accurate=True``). NotInvertibleError is raised where channels were cut off in forward, so that x cannot be
        known, or the polynomial of training is too coarse for an inverse.
        """
        if not self._is_injective():
            kept, given = sorted((self.read_channels, self.kept_channels))
            raise NotInvertibleError(
                f"{type(self).__name__} keeps {kept} of {given} channels (stride included), so it has no inverse; "
                "use out_channels >= in_channels * prod(stride), or .adjoint(y) for the least-squares preimage"
            )
        centred = y if self.bias is None else y - self._bias_of(y)
        return self._iterated_inverse(centred) if self.training else self.adjoint(centred)

    def _iterated_inverse(self, y: Tensor) -> Tensor:
        """x with S x = y, for the linear map S of training mode and a y in its range (Richardson's iteration).

        With the gain of S in [l, h] and t = 2 / (l^2 + h^2), the eigenvalues of I - t S^H S are at most
        q = (h^2 - l^2) / (h^2 + l^2) in modulus. So x_0 = t S^H y errs by q ||x|| at most, and every step
        x + t S^H (y - S x) multiplies the error by q.
        """
        tol = max(self.polynomial().truncation_error, torch.finfo(y.dtype).eps)
        low, high = self.gain_bounds()
        rate = (high**2 - low**2) / (high**2 + low**2) if low > 0 and math.isfinite(high) else 1.0
        # The fewest with q^(steps + 1) <= tol.
        steps = math.log(tol) / math.log(rate) - 1 if 0 < rate < 1 else rate * math.inf if rate else 0.0
        if steps > _MOST_ITERATIONS:
            raise NotInvertibleError(
                f"in training this {type(self).__name__} has a gain in [{low:.3g}, {high:.3g}], too far from one for "
                f"an inverse in {_MOST_ITERATIONS} steps; build it with accurate=True, or a smaller train_tol, or call "
                ".eval()"
            )
        factor = 2 / (low**2 + high**2)
        x = factor * self.adjoint(y)
        for _ in range(math.ceil(steps)):
            x = x + factor * self.adjoint(y - self.linear(x))
        return x

    def _bias_of(self, y: Tensor) -> Tensor:
        assert self.bias is not None
        return self.bias.reshape(-1, *(1,) * self.axes).to(y.dtype)

    def linear(self, x: Tensor, *, adjoint: bool = False, step: bool = False) -> Tensor:
        """S x without the bias, or S^H x; after a power step in training, if asked for."""
        upward, strided = adjoint != self.transposed, max(self.stride) > 1
        if upward:
            self._check_input(x, self.kept_channels, (1,) * self.axes)
        else:
            self._check_input(x, self.read_channels // math.prod(self.stride), self.stride)
        weight = self._filter(step=step)
        dtype = torch.get_autocast_dtype(x.device.type) if autocasting(x.device) else weight.dtype
        y = apply_polynomial(
            invertible_downsample(x, self.stride) if strided and not upward else x,
            weight,
            self.polynomial(training=self.training, dtype=None if self.is_complex else dtype),
            self.geometry,
            out_channels=self.read_channels if upward else self.kept_channels,
            inverse=upward,
            engine=self.engine,
            recompute=self.recompute,
        )
        return invertible_upsample(y, self.stride) if strided and upward else y

    def _check_input(self, x: Tensor, channels: int, stride: tuple[int, ...]) -> None:
        name, axes = type(self).__name__, self.axes
        if x.dim() not in (axes + 1, axes + 2):
            raise ShapeError(
                f"{name} takes (batch, {channels}, *size) or ({channels}, *size) with {axes} spatial axes, got "
                f"{tuple(x.shape)}"
            )
        if x.is_complex() != self.is_complex or not (x.is_complex() or x.is_floating_point()):
            kind, other = ("complex", "SOC for real") if self.is_complex else ("real floating", "SUC for complex")
            raise DtypeError(f"{name} takes {kind} input, got {x.dtype}; use {other} input, or convert it")
        if x.dtype != self.filter_dtype and not autocasting(x.device):
            raise DtypeError(f"the input is {x.dtype} and the layer {self.filter_dtype}; convert one with .to(dtype)")
        if x.shape[-axes - 1] != channels:
            raise ShapeError(f"{name} takes {channels} channels, got {x.shape[-axes - 1]} (shape {tuple(x.shape)})")
        size = x.shape[-axes:]
        if 0 in size or any(n % s for n, s in zip(size, stride, strict=True)):
            raise ShapeError(
                f"the image size {tuple(size)} must be positive and divisible by the stride {stride}; crop or pad it"
            )

    @classmethod
    def from_filter(
        cls: type[Layer],
        M: Tensor,
        in_channels: int | None = None,
        out_channels: int | None = None,
        stride: IntOrTuple = 1,
        **options: Any,
    ) -> Layer:
        """A layer from a raw filter M of the paper's kind: its skew filter is M - transpose(M), then normalised.

        Args:
            M: (m, m / groups, *kernel); even sizes are padded to odd.
            in_channels: m / prod(stride) by default, and max(in_channels * prod(stride), out_channels) must be m
                (for the transposed layers the other way round).
            out_channels: m by default.
            options: the constructor's other arguments; dtype and device are those of M by default.
        """
        groups = options.get("groups", 1)
        check_square(M, "M", groups=groups)
        if M.dim() != cls.axes + 2:
            raise ShapeError(f"{cls.__name__} takes a filter with {cls.axes} spatial axes, got shape {tuple(M.shape)}")
        folded, m = math.prod(per_axis(stride, cls.axes, "stride")), M.shape[0]
        wide, narrow = (out_channels, in_channels) if cls.transposed else (in_channels, out_channels)
        wide, narrow = m // folded if wide is None else wide, m if narrow is None else narrow
        channels = (narrow, wide) if cls.transposed else (wide, narrow)
        options = {"dtype": M.dtype, "device": M.device, **options}
        layer = cls(*channels, tuple(M.shape[2:]), stride, **options)
        if layer.channels != m:
            raise ShapeError(
                f"M has {m} channels but {cls.__name__}({channels[0]}, {channels[1]}, stride={stride}) needs "
                f"max(read, kept) = {layer.channels}; pass in_channels and out_channels that fit"
            )
        parts = free_half(skew_filter(M.detach(), groups), layer.taps, groups)
        with torch.no_grad():
            for name, part in zip(("free", "centre", "phase"), parts, strict=True):
                parameter = getattr(layer, name)
                if parameter is not None:
                    parameter.copy_(part)
        layer._restart()
        return layer

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        ones = (1,) * self.axes
        defaults = {"stride": ones, "dilation": ones, "groups": 1, "padding_mode": "zeros"}
        parts += [f"{k}={getattr(self, k)!r}" for k, default in defaults.items() if getattr(self, k) != default]
        parts += [*(["bias=False"] if self.bias is None else []), f"norm_bound={self.norm_bound:.4g}"]
        words = []
        for training in (self.training, not self.training):
            p, mode = self.polynomial(training=training), "training" if training else "evaluation"
            words.append(f"in {mode} {p.series} of degree {p.degree}, error <= {p.truncation_error:.1e}")
        accurate = self.train_polynomial == self.eval_polynomial
        return ", ".join([*parts, f"accurate=True, {words[0]}" if accurate else f"{words[0]} ({words[1]})"])
