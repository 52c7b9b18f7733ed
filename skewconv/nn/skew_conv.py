"""The layer all skew orthogonal convolutions share: parameters, normalisation, what is proven, the maps."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, get_args

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, DtypeError, NotInvertibleError, ShapeError
from skewconv.nn import _opaque
from skewconv.nn._cache import EvalCache
from skewconv.nn._transforms import outside_transforms, unwrapped
from skewconv.nn.accuracy import Accuracy
from skewconv.nn.downsample import invertible_downsample, invertible_upsample
from skewconv.nn.free_half import Half, assemble, free_half, packed_shape, taps_of
from skewconv.nn.normalisation import (
    belong_together,
    converged,
    fresh_vectors,
    leading,
    proven_norm,
    rounding_margin,
    scaled_by_estimate,
)
from skewconv.nn.normalised import Norm, gradients, normalised, on_tape, splits
from skewconv.ops.checks import IntOrTuple, PaddingMode, check_positive, check_square, per_axis
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.adjoint import autocasting, without_autocast
from skewconv.ops.exponential import apply_polynomial
from skewconv.ops.filters import skew_filter
from skewconv.ops.plan import Engine
from skewconv.ops.series import Polynomial, Series

TRAIN_TOL = 0.11
EVAL_TOL = 1e-6

Layer = TypeVar("Layer", bound="SkewConv")


class SkewConv(nn.Module):
    """S = keep o exp(J) o pad o psi: the map all layers of this family share; see :class:`skewconv.nn.SOC2d`."""

    axes: ClassVar[int]
    is_complex: ClassVar[bool]
    transposed: ClassVar[bool] = False

    free: nn.Parameter | None
    centre: nn.Parameter
    phase: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple = 1,
        padding: str = "same",
        dilation: IntOrTuple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        series: Series = "chebyshev",
        train_degree: int | None = None,
        eval_degree: int | None = None,
        train_tol: float = TRAIN_TOL,
        eval_tol: float = EVAL_TOL,
        norm_bound: float | None = None,
        engine: Engine = "auto",
        recompute: bool = False,
    ) -> None:
        super().__init__()
        if padding != "same":
            raise ArgumentError(
                f"padding must be 'same', got {padding!r}: an orthogonal convolution keeps the image size (and divides "
                "it by the stride); leave the argument out"
            )
        self.in_channels, self.out_channels = _count(in_channels, "in_channels"), _count(out_channels, "out_channels")
        self.groups = _count(groups, "groups")
        self.kernel_size = per_axis(kernel_size, self.axes, "kernel_size")
        self.stride = per_axis(stride, self.axes, "stride")
        self.padding = padding
        self.padding_mode = padding_mode
        self.geometry = Geometry.of(self.kernel_size, padding_mode, dilation, self.groups)
        self.dilation = self.geometry.dilation
        wide, narrow = (out_channels, in_channels) if self.transposed else (in_channels, out_channels)
        # What exp(J) reads and what is kept of it; the adjoint layers run the other way.
        self.read_channels, self.kept_channels = wide * math.prod(self.stride), narrow
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.groups:
                raise ArgumentError(
                    f"{name}={getattr(self, name)} is not divisible by groups={groups}; each group needs as many"
                )
        self.channels = max(self.read_channels, self.kept_channels)
        self.norm_bound = (
            (1.0 if math.prod(self.kernel_size) == 1 else 0.7 * math.sqrt(math.prod(self.kernel_size)))
            if norm_bound is None
            else check_positive(norm_bound, "norm_bound")
        )
        self.train_accuracy = Accuracy(series, train_degree, train_tol, non_expansive=False)
        self.eval_accuracy = Accuracy(series, eval_degree, eval_tol, non_expansive=True)
        if engine not in get_args(Engine):
            raise ArgumentError(f"engine must be one of {', '.join(map(repr, get_args(Engine)))}, got {engine!r}")
        if engine == "spectral" and padding_mode != "circular":
            raise ArgumentError(f"engine='spectral' needs padding_mode='circular', got {padding_mode!r}; use 'auto'")
        self.engine, self.recompute = engine, recompute
        self._make_parameters(bias, device, self._check_dtype(dtype))
        self._cache: EvalCache[Any] = EvalCache()
        self._number = _opaque.enlist(self)
        for accuracy in (self.train_accuracy, self.eval_accuracy):
            accuracy.polynomial(self.proven_norm_bound())
        self.reset_parameters()

    def _check_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        if dtype is None:
            dtype = torch.get_default_dtype()
            return dtype.to_complex() if self.is_complex else dtype
        if not (dtype.is_complex if self.is_complex else dtype.is_floating_point):
            kind = "complex, such as torch.complex64" if self.is_complex else "floating, such as torch.float32"
            raise DtypeError(f"the dtype of {type(self).__name__} must be {kind}, got {dtype}")
        return dtype

    def _make_parameters(self, bias: bool, device: torch.device | str | None, dtype: torch.dtype) -> None:
        def empty(*shape: int, kind: torch.dtype = dtype) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=kind))

        n, self.taps = self.channels // self.groups, taps_of(self.kernel_size)
        self.free = empty(len(self.taps.free), self.channels, n) if self.taps.free else None
        self.centre = empty(self.groups, *packed_shape(n))
        self.phase = empty(self.groups, n, kind=dtype.to_real()) if self.is_complex else None
        self.bias = empty(self.out_channels) if bias else None
        for j in range(self.axes):
            rows = n * math.prod(self.taps.kernel[:j])
            vector = torch.zeros(self.groups, rows, device=device, dtype=torch.promote_types(dtype, torch.float32))
            self.register_buffer(f"u{j}", vector)

    def reset_parameters(self) -> None:
        """Draw the filter from the paper's distribution, the bias from nn.Conv's, and converge the power vectors."""
        with torch.no_grad():
            for parameter in self._filter_parameters():
                parameter.normal_()
            if self.bias is not None:
                reach = 1 / math.sqrt(self.read_channels // self.groups * math.prod(self.kernel_size))
                (torch.view_as_real(self.bias) if self.is_complex else self.bias).uniform_(-reach, reach)
        self._restart()

    # The filter

    def _filter_parameters(self) -> list[nn.Parameter]:
        return [p for p in (self.centre, self.free, self.phase) if p is not None]

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """The shape of :attr:`weight`."""
        return (self.channels, self.channels // self.groups, *self.taps.kernel)

    @property
    def filter_dtype(self) -> torch.dtype:
        """The dtype of :attr:`weight`."""
        return self.centre.dtype

    def _half(self, parameters: Sequence[Tensor]) -> Half:
        """The free half of the filter, in single precision or better."""
        wide = [p.to(torch.promote_types(p.dtype, torch.float32)) for p in parameters]
        free = wide[1] if self.free is not None else None
        phase = wide[-1] if self.phase is not None else None
        return Half(free, wide[0], phase, self.taps, self.channels // self.groups)

    def _assemble(self, parameters: Sequence[Tensor]) -> Tensor:
        """The skew filter before normalisation."""
        return assemble(*self._half(parameters))

    def _vectors(self) -> list[Tensor]:
        return [getattr(self, f"u{j}") for j in range(self.axes)]

    @torch.no_grad()
    def _restart(self) -> None:
        """Converge the power vectors from a fixed start."""
        if not self.centre.is_meta:
            self._store(fresh_vectors(self._assemble(self._filter_parameters()), self.groups))

    def _store(self, vectors: list[Tensor]) -> None:
        for u, now in zip(self._vectors(), vectors, strict=True):
            u.copy_(now)

    def _filter_in_training(self, *, step: bool) -> Tensor:
        """norm_bound L / estimate, with the gradient of the estimate; one power step forward if ``step``."""
        half = self._half(self._filter_parameters())
        weight, vectors = scaled_by_estimate(half, self._vectors(), self.norm_bound)
        # Function transforms forbid a step that outlives the call, as they do for the statistics of BatchNorm.
        if step and not torch._C._are_functorch_transforms_active():
            self._store(vectors)
        return weight.to(self.filter_dtype)

    def filter_in_eval(self, parameters: Sequence[Tensor]) -> Tensor:
        """norm_bound L / proven norm, from a cache that notices any change of the parameters' content."""
        values = [unwrapped(p) for p in parameters]
        with outside_transforms():
            scale, split, ready = self._cache.get(values, "filter", lambda: self._prove(values))
            if not (torch.is_grad_enabled() and any(p.requires_grad for p in parameters)):
                return ready
            norm = self._cache.get(values, "norm", lambda: self._converge(values, split))
        half = self._half(parameters)
        if torch._C._are_functorch_transforms_active():
            return on_tape(half, scale, norm).to(self.filter_dtype)
        with torch.no_grad():
            raw = assemble(*half)
        return normalised(half, raw, scale, norm).to(self.filter_dtype)

    def filter_gradients_in_eval(self, parameters: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
        """The gradients of :meth:`filter_in_eval` in the parameters, without autograd."""
        scale, split, _ = self._cache.get(parameters, "filter", lambda: self._prove(parameters))
        norm = self._cache.get(parameters, "norm", lambda: self._converge(parameters, split))
        half = self._half(parameters)
        free, centre, phase = gradients(grad.to(half.centre.dtype), half, scale, norm)
        found = [centre, *([free] if self.free is not None else []), *([phase] if phase is not None else [])]
        return [g.to(p.dtype).contiguous() for g, p in zip(found, parameters, strict=True)]

    def _prove(self, parameters: Sequence[Tensor]) -> tuple[Tensor, int, Tensor]:
        raw = self._assemble(parameters)
        proven, split = proven_norm(raw, self.groups)
        scale = torch.tensor(self.norm_bound / proven if proven else 1.0, device=raw.device, dtype=raw.real.dtype)
        return scale, split, (raw * scale).to(self.filter_dtype)

    def _converge(self, parameters: Sequence[Tensor], split: int) -> Norm:
        raw = self._assemble(parameters)
        return leading(split, converged(splits(raw, self.groups)[split], self._vectors()[split].to(raw.dtype)))

    def _filter(self, *, step: bool = False) -> Tensor:
        with without_autocast(self.centre.device):
            if self.training:
                return self._filter_in_training(step=step)
            parameters = self._filter_parameters()
            if torch.compiler.is_compiling():
                result: Tensor = _opaque.eval_filter(parameters, self._number)
                return result
            return self.filter_in_eval(parameters)

    @property
    def weight(self) -> Tensor:
        """The normalised skew filter (m, m / groups, *odd kernel), in nn.Conv layout."""
        return self._filter()

    # What is proven

    def proven_norm_bound(self, dtype: torch.dtype | None = None) -> float:
        """An upper bound on the Jacobian's norm in evaluation, the rounding of the filter to ``dtype`` included."""
        margin = rounding_margin(self.channels // self.groups, self.taps.kernel, dtype or self.filter_dtype)
        return math.nextafter(self.norm_bound * margin, math.inf)

    def polynomial(self, *, training: bool = False, dtype: torch.dtype | None = None) -> Polynomial:
        """The polynomial that stands for the exponential, with its proven error and gain."""
        accuracy = self.train_accuracy if training else self.eval_accuracy
        result: Polynomial = accuracy.polynomial(self.proven_norm_bound(dtype))
        return result

    def gain_bounds(self) -> tuple[float, float]:
        """Proven (min, max) of ||S x|| / ||x|| over all x, for the linear map S of evaluation mode, on any image.

        The maximum is at most one unless ``eval_degree`` fixed a polynomial that exceeds it; the minimum is zero where
        channels are cut off, because something is then lost.
        """
        low, high = self.polynomial().gain
        injective = self.kept_channels >= self.read_channels
        if self.transposed:
            injective = self.read_channels >= self.kept_channels
        return low if injective else 0.0, high

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """The largest gain."""
        return self.gain_bounds()[1]

    # The maps

    def forward(self, x: Tensor) -> Tensor:
        y = self._adjoint_map(x, step=True) if self.transposed else self._map(x, step=True)
        return y if self.bias is None else y + self._bias_of(y)

    def adjoint(self, y: Tensor) -> Tensor:
        """S^H y for the linear map S of the layer, without bias: <S x, y> = <x, S^H y>."""
        return self._map(y) if self.transposed else self._adjoint_map(y)

    def inverse(self, y: Tensor) -> Tensor:
        """The x with forward(x) = y, to the polynomial's error; y must be in the range of the layer.

        Raises:
            NotInvertibleError: channels were cut off in forward, so x cannot be known.
        """
        if self.gain_bounds()[0] == 0.0:
            given, kept = (
                (self.in_channels, self.read_channels) if self.transposed else (self.read_channels, self.kept_channels)
            )
            raise NotInvertibleError(
                f"{type(self).__name__} keeps {kept} of {given} channels (stride included), so it has no inverse; "
                "use out_channels >= in_channels * prod(stride), or .adjoint(y) for the least-squares preimage"
            )
        return self.adjoint(y if self.bias is None else y - self._bias_of(y))

    def _bias_of(self, y: Tensor) -> Tensor:
        assert self.bias is not None
        return self.bias.reshape(-1, *(1,) * self.axes).to(y.dtype)

    def _map(self, x: Tensor, *, step: bool = False) -> Tensor:
        self._check_input(x, self.out_channels if self.transposed else self.in_channels, self.stride)
        down = invertible_downsample(x, self.stride) if max(self.stride) > 1 else x
        return self._exponential(down, self.kept_channels, inverse=False, step=step)

    def _adjoint_map(self, y: Tensor, *, step: bool = False) -> Tensor:
        self._check_input(y, self.kept_channels, (1,) * self.axes)
        up = self._exponential(y, self.read_channels, inverse=True, step=step)
        return invertible_upsample(up, self.stride) if max(self.stride) > 1 else up

    def _exponential(self, x: Tensor, out_channels: int, *, inverse: bool, step: bool) -> Tensor:
        self.geometry.check_image(tuple(x.shape[-self.axes :]))
        weight = self._filter(step=step)
        dtype = torch.get_autocast_dtype(x.device.type) if autocasting(x.device) else weight.dtype
        return apply_polynomial(
            x,
            weight,
            self.polynomial(training=self.training, dtype=None if self.is_complex else dtype),
            self.geometry,
            out_channels=out_channels,
            inverse=inverse,
            engine=self.engine,
            recompute=self.recompute,
        )

    def _check_input(self, x: Tensor, channels: int, stride: tuple[int, ...]) -> None:
        name = type(self).__name__
        if x.dim() not in (self.axes + 1, self.axes + 2):
            raise ShapeError(
                f"{name} takes (batch, {channels}, *size) or ({channels}, *size) with {self.axes} spatial axes, "
                f"got {tuple(x.shape)}"
            )
        if x.is_complex() != self.is_complex or not (x.is_complex() or x.is_floating_point()):
            kind, other = ("complex", "SOC for real") if self.is_complex else ("real floating", "SUC for complex")
            raise DtypeError(f"{name} takes {kind} input, got {x.dtype}; use {other} input, or convert it")
        if x.dtype != self.filter_dtype and not autocasting(x.device):
            raise DtypeError(f"the input is {x.dtype} and the layer {self.filter_dtype}; convert one with .to(dtype)")
        if x.shape[-self.axes - 1] != channels:
            raise ShapeError(
                f"{name} takes {channels} channels, got {x.shape[-self.axes - 1]} (shape {tuple(x.shape)})"
            )
        size = x.shape[-self.axes :]
        if 0 in size or any(n % s for n, s in zip(size, stride, strict=True)):
            raise ShapeError(
                f"the image size {tuple(size)} must be positive and divisible by the stride {stride}; crop or pad it"
            )

    # Life of a module

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
            stride: as in the constructor.
            options: the constructor's other arguments; dtype and device are those of M.
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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if self.centre.is_meta:
            return
        # Vectors saved with their weights go on where they were, to the bit; any others are converged anew.
        with torch.no_grad():
            if not belong_together(self._assemble(self._filter_parameters()), self._vectors(), self.groups):
                self._restart()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._number = _opaque.enlist(self)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        for name, default in (("stride", 1), ("dilation", 1)):
            if getattr(self, name) != (default,) * self.axes:
                parts.append(f"{name}={getattr(self, name)}")
        if self.groups > 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode!r}")
        parts.append(f"norm_bound={self.norm_bound:.4g}, {self.train_accuracy.series}")
        for mode in ("train", "eval"):
            p = self.polynomial(training=mode == "train")
            parts.append(f"{mode}: degree {p.degree}, error <= {p.truncation_error:.1e}")
        return ", ".join(parts)


def _count(value: int, name: str) -> int:
    return per_axis(value, 1, name)[0]
