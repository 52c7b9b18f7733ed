"""Residual 1-Lipschitz convolutions x - 2 W S relu(W^T x + b) with a diagonal S proven small enough: SLL and CPL.

If S^(1/2) W^T W S^(1/2) <= I, the map is 1-Lipschitz: between two points relu multiplies W^T (x - y) by a diagonal
matrix D with entries in [0, 1], and with A = W S^(1/2), ||A|| <= 1, and D and S diagonal,

    (I - 2 A D A^T)^T (I - 2 A D A^T) = I - 4 A D A^T + 4 A D (A^T A) D A^T <= I - 4 A (D - D^2) A^T <= I.

W^T is a convolution with a filter and W its adjoint, for either padding and every image size.
"""

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple, check_counts
from skewconv.choices import PaddingMode
from skewconv.nn.eval_operator import Size, at_precision, compute_dtype
from skewconv.nn.gains import with_gain
from skewconv.nn.power_iteration import LastStep
from skewconv.nn.primitives import ResidualStep, fitted
from skewconv.nn.proven_conv import SquareConv2d
from skewconv.ops.convolution import adjoint_filter, convolve, residual_step
from skewconv.ops.gram_row_sums import gram_row_sums, gram_row_sums_upper_bound
from skewconv.ops.norms import norm_upper_bound
from skewconv.ops.torch_modes import in_format_of, uncompiled, without_autocast
from skewconv.rigor import round_down

# Filters that are smaller than the root of its inverse lose their residual: what they round to would be larger.
LARGEST_SCALE = 2.0**60
# Power steps of CPL from a fixed start, so that two layers with the same weights have the same estimate.
_FRESH_STEPS = 30


class ResidualConv2d(SquareConv2d):
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi: 1-Lipschitz, and the identity where relu is zero."""

    weight: nn.Parameter

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
        hidden_channels: int | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode)
        self.channels = max(self.folded_channels, out_channels)
        self.hidden_channels = self.channels if hidden_channels is None else hidden_channels
        check_counts(hidden_channels=self.hidden_channels)
        shape = (self.hidden_channels, self.channels, self.kernel_size, self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.hidden_channels, device=device, dtype=dtype)) if bias else None

    def reset_parameters(self) -> None:
        """As in nn.Conv2d, whose scale does not matter here; the bias is zero."""
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @abstractmethod
    def _estimated_scale(self, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The diagonal of S, (hidden,) or (), to rounding: differentiable, for training."""

    @abstractmethod
    def _scale_lower_bound(self, sources: Sequence[Tensor]) -> Tensor:
        """The same in float64, so small that S^(1/2) W^T W S^(1/2) <= I is proven for the weights as they are."""

    def _prove(self, sources: Sequence[Tensor], size: Size) -> tuple[Tensor]:
        weight = sources[0]
        largest = min(LARGEST_SCALE, torch.finfo(weight.dtype).max / 4)
        exact = self._scale_lower_bound(sources).clamp(max=largest)
        rounded = (exact * (1 - torch.finfo(weight.dtype).eps)).to(weight.dtype)
        # Among the denormals of a short type even this may round up.
        return (torch.where(rounded.double() < exact, rounded, 0.0).to(weight),)

    def _with_derivative(self, sources: Sequence[Tensor], proven: tuple[Tensor], size: Size) -> Tensor:
        # The value that is proven, with the derivative of what it stands for.
        estimate = self._estimated_scale(sources, torch.float64).to(proven[0])
        return proven[0] + (estimate - estimate.detach())

    @property
    def scale(self) -> Tensor:
        """The diagonal of S, (hidden,) or (): in eval mode what is proven, rounded down to the layer's precision."""
        if self.training:
            return self._estimated_scale(self._sources(), compute_dtype(self.weight)).to(self.weight.dtype)
        return self._operator_in_eval().clone()

    @uncompiled
    def forward(self, x: Tensor) -> Tensor:
        """(n, c_in, h, w) or (c_in, h, w) -> (n, c_out, h / stride, w / stride)."""
        self._check(x, self.in_channels, "input")
        z = fitted(x if x.dim() == 4 else x.unsqueeze(0), self.stride, self.channels)
        with without_autocast(x.device):
            scale = self.scale
        y = residual_step(z, self.weight, scale, self.bias, self.padding_mode)[:, : self.out_channels]
        return in_format_of(x, y if x.dim() == 4 else y.squeeze(0), self)

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> ResidualStep:
        """The same two convolutions with the scale of eval mode."""
        step = ResidualStep(
            weight=self.weight,
            scale=self.scale,
            stride=self.stride,
            padding_mode=self.padding_mode,
            bias=self.bias,
            **self._shapes_of(input_shape),
        )
        return with_gain(step, (0.0, 1.0))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, padding_mode={self.padding_mode!r}, hidden_channels={self.hidden_channels}"


class SLL2d(ResidualConv2d):
    """y = x - 2 W T^-1 relu(W^T x + b) with T_ii = sum_j |W^T W|_ij q_j / q_i, q positive and learned.

    >>> from skewconv.nn.gains import gain_bounds
    >>> layer = SLL2d(4, 4, 3).eval()
    >>> layer(torch.randn(1, 4, 8, 8)).shape, gain_bounds(layer.lower((4, 8, 8)))[1]
    (torch.Size([1, 4, 8, 8]), 1.0)

    T - W^T W has a dominant diagonal once it is scaled by q, so that T^(-1/2) W^T W T^(-1/2) <= I: the layer is
    1-Lipschitz (see :mod:`skewconv.nn.residual_conv`), for both paddings and every image size. In eval mode the row
    sums are rounded up and their inverses down, to what is stored; there is no epsilon.

    Args:
        in_channels, out_channels: the residual has max(in_channels * stride^2, out_channels) channels: missing ones are
            zero, surplus ones are dropped.
        kernel_size: k, for a k x k filter, odd or even; the padding keeps the size.
        stride: by invertible downsampling.
        padding, dilation, groups: "same" or its number, 1 and 1.
        bias, device, dtype: as in nn.Conv2d.
        padding_mode: "zeros" or "circular".
        hidden_channels: of relu; as many as the residual has by default.

    Reference: Araujo, Havens, Delattre, Allauzen, Hu, "A unified algebraic perspective on Lipschitz neural networks",
    2023. Their T has 1e-6 in it, which makes the layer slightly more than 1-Lipschitz.
    """

    log_q: nn.Parameter

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrTuple, *places: Any, **options: Any
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, *places, **options)
        self.log_q = nn.Parameter(self.weight.new_empty(self.hidden_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in nn.Conv2d; the bias is zero and q is one."""
        super().reset_parameters()
        nn.init.zeros_(self.log_q)

    def _sources(self) -> list[Tensor]:
        return [self.weight, self.log_q]

    def _estimated_scale(self, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        weight, log_q = (at_precision(source, dtype) for source in sources)
        sums = gram_row_sums(weight.transpose(0, 1), log_q.exp())
        # A channel without weights has nothing to scale.
        return torch.where(sums > 0, 1 / sums.clamp_min(1 / LARGEST_SCALE), 0.0)

    def _scale_lower_bound(self, sources: Sequence[Tensor]) -> Tensor:
        weight, log_q = sources
        # Any positive q will do, so it is taken as it is computed.
        q = log_q.detach().cpu().double().clamp(-300, 300).exp()
        # 1 / r errs by u and is rounded down later by more than that.
        return 1 / gram_row_sums_upper_bound(weight.transpose(0, 1), q)


class CPL2d(ResidualConv2d):
    """y = x - 2 / ||W||^2 W relu(W^T x + b): a gradient step on a convex potential.

    >>> from skewconv.nn.gains import gain_bounds
    >>> layer = CPL2d(4, 4, 3).eval()
    >>> layer(torch.randn(1, 4, 8, 8)).shape, gain_bounds(layer.lower((4, 8, 8)))[1]
    (torch.Size([1, 4, 8, 8]), 1.0)

    In eval mode ||W|| is a proven upper bound for both paddings and every image size
    (:func:`skewconv.ops.norm_upper_bound`), so that the layer is 1-Lipschitz (see
    :mod:`skewconv.nn.residual_conv`). In training it is estimated by power iteration around a small torus, on a vector
    that is kept, one step for every change of the weights.

    Args:
        in_channels, out_channels: the residual has max(in_channels * stride^2, out_channels) channels: missing ones are
            zero, surplus ones are dropped.
        kernel_size: k, for a k x k filter, odd or even; the padding keeps the size.
        stride: by invertible downsampling.
        padding, dilation, groups: "same" or its number, 1 and 1.
        bias, device, dtype: as in nn.Conv2d.
        padding_mode: "zeros" or "circular".
        hidden_channels: of relu; as many as the residual has by default.

    Reference: Meunier, Delattre, Araujo, Allauzen, "A dynamical system perspective for Lipschitz neural networks",
    2022.
    """

    power_vector: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrTuple, *places: Any, **options: Any
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, *places, **options)
        self._last_step = LastStep()
        side = 2 * self.kernel_size + 2
        self.register_buffer("power_vector", self.weight.new_empty(1, self.channels, side, side))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in nn.Conv2d, and the power vector converged from a fixed start; the bias is zero."""
        super().reset_parameters()
        if not self.weight.is_meta:
            with torch.no_grad():
                start = torch.linspace(1, 2, self.power_vector.numel(), device=self.weight.device)
                self.power_vector.copy_(start.cos().view_as(self.power_vector))
                for _ in range(_FRESH_STEPS):
                    self.power_vector.copy_(self._power_step(self.weight.float(), self.power_vector)[0])

    def _sources(self) -> list[Tensor]:
        return [self.weight]

    def _power_step(self, weight: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """(the next vector, the image of this one), both of length one, around a torus."""
        with torch.no_grad():
            image = _unit(convolve(_unit(start.to(weight)), weight, padding_mode="circular"))
            return _unit(convolve(image, adjoint_filter(weight), padding_mode="circular")), image

    def _step_in_training(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """One step forward, unless the last one was taken for the same weights: then that one again."""
        tensors = [self.weight, self.power_vector]
        if (again := self._last_step.repeated(tensors)) is not None:
            return self._power_step(weight, again[0])
        before = self.power_vector.clone()
        vector, image = self._power_step(weight, before)
        # Function transforms forbid a step that outlives the call, as they do for the statistics of BatchNorm.
        if not torch._C._are_functorch_transforms_active():
            with torch.no_grad():
                self.power_vector.copy_(vector)
            self._last_step.record([before], tensors)
        return vector, image

    def _estimated_scale(self, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        weight = at_precision(sources[0], dtype)
        vector, image = self._step_in_training(weight) if self.training else self._power_step(weight, self.power_vector)
        # The vectors are constants of the derivative, as in every spectral normalisation.
        norm = (convolve(vector, weight, padding_mode="circular") * image).sum()
        return torch.where(norm > 0, 1 / norm.square().clamp_min(1 / LARGEST_SCALE), 0.0)

    def _scale_lower_bound(self, sources: Sequence[Tensor]) -> Tensor:
        norm = norm_upper_bound(sources[0])
        scale = round_down(1 / Fraction(norm) ** 2) if norm > 0 else 0.0
        return torch.tensor(scale, dtype=torch.float64)


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x).clamp_min(torch.finfo(x.dtype).tiny)
