"""The filter of a skew orthogonal convolution: skew by its parameters, and normalised."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, get_args

import torch
from torch import Tensor, nn

from skewconv.checks import check_positive
from skewconv.choices import NormName
from skewconv.errors import ArgumentError, DtypeError
from skewconv.nn import power_iteration as power
from skewconv.nn.eval_operator import EvalCache, EvalOperator, Size
from skewconv.nn.soc import skew_parametrization as skew
from skewconv.ops.torch_modes import outside_transforms, without_autocast
from skewconv.rigor import FEW_ROUNDINGS_UP

# Of the intervals of filters whose scale is learned.
_GRAIN = 1 / 32


class ProvenFilter(NamedTuple):
    """The filter of evaluation, weight = scale L / 2^exponent, and which split of its axes proved its norm."""

    weight: Tensor
    scale: Tensor
    split: int
    exponent: int


class SkewFilter(EvalOperator):
    """The free half of a skew filter as parameters, and :attr:`weight` with a Jacobian of norm at most ``norm_bound``.

    In training the norm is estimated, one power step for every change of the parameters; in evaluation it is proven.
    """

    axes: ClassVar[int]
    is_complex: ClassVar[bool]

    free: nn.Parameter | None
    centre: nn.Parameter
    phase: nn.Parameter | None
    scale_angle: nn.Parameter | None
    tracked_norm: power.TrackedNorm | None
    power_steps: Tensor

    def __init__(
        self,
        channels: int,
        kernel_size: tuple[int, ...],
        groups: int,
        norm_bound: float | None,
        norm: NormName,
        init_scale: float,
        learn_scale: float | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.channels, self.kernel_size, self.groups = channels, kernel_size, groups
        taps = math.prod(kernel_size)
        default = 1.0 if taps == 1 else 0.7 * math.sqrt(taps)
        self.norm_bound = check_positive(default if norm_bound is None else norm_bound, "norm_bound")
        self.init_scale = check_positive(init_scale, "init_scale")
        self.learn_scale = None if learn_scale is None else check_positive(learn_scale, "learn_scale")
        if self.learn_scale is not None and self.learn_scale > 1:
            raise ArgumentError(f"learn_scale is a share of norm_bound, above 0 and at most 1, got {learn_scale}")
        real = torch.get_default_dtype()
        dtype = dtype or (real.to_complex() if self.is_complex else real)
        if not (dtype.is_complex if self.is_complex else dtype.is_floating_point):
            kind = "complex, such as torch.complex64" if self.is_complex else "floating, such as torch.float32"
            raise DtypeError(f"the dtype of {type(self).__name__} must be {kind}, got {dtype}")
        n, self.taps, wide = channels // groups, skew.taps_of(kernel_size), torch.promote_types(dtype, torch.float32)

        def empty(*shape: int, kind: torch.dtype = dtype) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=kind))

        self.free = empty(len(self.taps.free), channels, n) if self.taps.free else None
        self.centre = empty(groups, *skew.packed_shape(n))
        self.phase = empty(groups, n, kind=dtype.to_real()) if self.is_complex else None
        self.scale_angle = None if learn_scale is None else empty(kind=dtype.to_real())
        for j in range(self.axes):
            rows, columns = (n * math.prod(axes) for axes in (self.taps.kernel[:j], self.taps.kernel[j:]))
            shape = (groups, rows, power.block_size(rows, columns))
            self.register_buffer(f"u{j}", torch.zeros(shape, device=device, dtype=wide))
        if norm not in get_args(NormName):
            raise ArgumentError(f"norm must be one of {', '.join(map(repr, get_args(NormName)))}, got {norm!r}")
        self.tracked_norm = None
        if norm == "tracked" and taps > 1:  # a filter of a single tap is scaled by its very norm
            self.tracked_norm = power.TrackedNorm(channels, self.taps.kernel, groups, device, wide)
        self.register_buffer("power_steps", torch.zeros((), device=device, dtype=torch.int64))
        self._steps, self._last_step, self._vectors_are_loaded = 0, power.LastStep(), False
        self._scale_cache: EvalCache[float] = EvalCache()
        self._norm_cache: EvalCache[float] = EvalCache()

    def reset_parameters(self) -> None:
        """Draw the free half from N(0, init_scale^2 / n), n channels in a group, and converge the power vectors."""
        # With init_scale=1 a step of SGD or Adam turns the filter as far as that of the paper's authors, who draw all
        # of M from N(0, 1 / n) and take L = (M - transpose(M)) / 2: half the variance at half the gradient.
        std = self.init_scale / math.sqrt(self.channels // self.groups)
        with torch.no_grad():
            for parameter in self._filter_parameters():
                parameter.normal_(std=std)
            if self.scale_angle is not None and self.learn_scale is not None:
                self.scale_angle.fill_(math.asin(self.learn_scale))
        if self.tracked_norm is not None:
            self.tracked_norm.reset()
        self._restart()

    def _filter_parameters(self) -> list[nn.Parameter]:
        return [p for p in (self.centre, self.free, self.phase) if p is not None]

    @property
    def filter_dtype(self) -> torch.dtype:
        return self.centre.dtype

    def _half(self, parameters: Sequence[Tensor], exponent: int = 0) -> skew.FreeHalf:
        """The free half of the filter, in single precision or better, divided by 2^exponent."""
        wide = [p.to(torch.promote_types(p.dtype, torch.float32)) for p in parameters]
        wide = [skew.divided_by_power_of_two(p, exponent) for p in wide]
        free = wide[1] if self.free is not None else None
        phase = wide[-1] if self.phase is not None else None
        return skew.FreeHalf(free, wide[0], phase, self.taps, self.channels // self.groups)

    @torch.no_grad()
    def _splits(self, half: skew.FreeHalf | None = None) -> list[Tensor]:
        return skew.splits(skew.assemble(self._half(self._filter_parameters()) if half is None else half), self.groups)

    def _vectors(self) -> list[Tensor]:
        return [getattr(self, f"u{j}") for j in range(self.axes)]

    @torch.no_grad()
    def _restart(self) -> None:
        """Converge the power vectors from a fixed start."""
        self._last_step = power.LastStep()
        if not self.centre.is_meta:
            self._store([power.fresh_block(matrix) for matrix in self._splits()])

    def _store(self, vectors: list[Tensor]) -> None:
        for u, now in zip(self._vectors(), vectors, strict=True):
            u.copy_(now)

    def _filter_in_training(self, *, step: bool) -> Tensor:
        """norm_bound L / estimate, with the gradient of the estimate, and after one more power step if ``step``.

        None is taken twice for the same parameters: a forward pass that is repeated or inverted meets the same filter.
        """
        half, tensors = self._half(self._filter_parameters()), [*self._filter_parameters(), *self._vectors()]
        again = self._last_step.repeated(tensors)
        # Function transforms forbid a step that outlives the call, as they do for the statistics of BatchNorm.
        step = step and again is None and not torch._C._are_functorch_transforms_active()
        vectors = self._vectors() if again is None else again
        if step:
            if self._steps % power.REFRESH_EVERY == power.REFRESH_EVERY - 1:
                vectors = [power.refreshed(*each).block for each in zip(self._splits(half), vectors, strict=True)]
            else:
                vectors = [u.clone() for u in vectors]
        weight, following = skew.scaled_by_estimate(half, vectors, self.norm_bound)
        weight = self._scaled(weight)
        if step:
            self._store(following)
            self._steps += 1
            # Filled, and not copied: the host does not wait.
            self.power_steps.fill_(self._steps)
            if self.tracked_norm is not None and not weight.is_meta:
                self.tracked_norm.follow(weight.detach())
            self._last_step.record(vectors, tensors)
        self._last_step.ends_with_backward(weight)
        return weight.to(self.filter_dtype)

    def _sources(self) -> list[Tensor]:
        return list(self._filter_parameters())

    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenFilter:
        exponent = skew.extreme_exponent(sources)
        raw = skew.assemble(self._half(sources, exponent))
        proven, split = skew.proven_norm(raw, self.groups)
        scale = torch.tensor(self.norm_bound / proven if proven else 1.0, device=raw.device, dtype=raw.real.dtype)
        return ProvenFilter((raw * scale).to(self.filter_dtype), scale, split, exponent)

    def _with_derivative(self, sources: Sequence[Tensor], proven: ProvenFilter, size: Size) -> Tensor:
        split, half = proven.split, self._half(sources, proven.exponent)

        def converged_norm() -> skew.SplitNorm:
            raw = skew.assemble(half)
            step = power.converged(skew.splits(raw, self.groups)[split], self._vectors()[split].to(raw.dtype))
            return skew.split_norm(split, step, self.taps.kernel)

        with outside_transforms():
            norm = self._cache.get(self, sources, "norm", converged_norm)
        if torch._C._are_functorch_transforms_active():
            return skew.on_tape(half, proven.scale, norm).to(self.filter_dtype)
        with torch.no_grad():
            raw = skew.assemble(half)
        return skew.normalised(raw, half, proven.scale, norm).to(self.filter_dtype)

    def _filter(self, *, step: bool = False) -> Tensor:
        with without_autocast(self.centre.device):
            return self._filter_in_training(step=step) if self.training else self._scaled(self._operator_in_eval())

    def _scaled(self, weight: Tensor) -> Tensor:
        """The filter times its learned scale, a sine, which has no end at which it could be stuck."""
        return weight if self.scale_angle is None else weight * self.scale().to(weight.real.dtype)

    def scale(self) -> Tensor:
        """The learned share of ``norm_bound``, in [-1, 1], with its gradient; one without ``learn_scale``."""
        return self.centre.new_ones(()).real if self.scale_angle is None else self.scale_angle.sin()

    @property
    def weight(self) -> Tensor:
        """The normalised skew filter (m, m / groups, *odd kernel), in nn.Conv layout: a copy, as it may be edited."""
        return self._filter().clone()

    def proven_norm_bound(self, dtype: torch.dtype | None = None, *, scaled: bool = True) -> float:
        """An upper bound on the Jacobian's norm in evaluation, the rounding of the filter to ``dtype`` included.

        It is for the learned scale as it is now, or, if not ``scaled``, for any that it may have.
        """
        channels, kernel, dtype = self.channels // self.groups, self.taps.kernel, dtype or self.filter_dtype
        bound = skew.rounded_norm_up(self.norm_bound, channels, kernel, dtype)
        if self.scale_angle is None:
            return bound
        # The product with the scale is rounded once more.
        largest = skew.rounded_norm_up(bound, channels, kernel, dtype)
        if not scaled or self.scale_angle.is_meta or torch._C._are_functorch_transforms_active():
            return largest
        angle = self.scale_angle.detach()
        share = self._scale_cache.get(self, [angle], "scale", lambda: abs(float(angle.sin())))
        now = skew.rounded_norm_up(bound * share * FEW_ROUNDINGS_UP, channels, kernel, dtype)
        # Few intervals have few polynomials.
        return min(largest, math.ceil(now / _GRAIN) * _GRAIN)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # Files of version 0.2 have a single vector for each split, and do not count power steps.
        state_dict.setdefault(f"{prefix}power_steps", torch.zeros((), dtype=torch.int64))
        for j, block in enumerate(self._vectors()):
            stored = state_dict.get(f"{prefix}u{j}")
            if stored is not None and stored.dim() == 2:
                state_dict[f"{prefix}u{j}"] = torch.zeros_like(block)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if self.centre.is_meta:
            return
        self._steps, self._last_step = int(self.power_steps), power.LastStep()
        # Vectors serve training alone: they are looked at when it begins.
        self._vectors_are_loaded = True
        if self.training:
            self._check_vectors()

    @torch.no_grad()
    def _check_vectors(self) -> None:
        """Vectors saved with their weights go on where they were, to the bit; any others are converged anew."""
        if self._vectors_are_loaded and not all(map(power.belongs_to, self._splits(), self._vectors())):
            self._restart()
        self._vectors_are_loaded = False

    def train(self, mode: bool = True) -> "SkewFilter":
        if mode:
            self._check_vectors()
        return super().train(mode)
