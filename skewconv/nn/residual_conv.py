"""Residual 1-Lipschitz convolutions x - 2 W S relu(W^T x + b) with a diagonal S proven small enough: SLL and CPL.

If S^(1/2) W^T W S^(1/2) <= I, the map is 1-Lipschitz: between two points relu multiplies W^T (x - y) by a diagonal
matrix D with entries in [0, 1], and with A = W S^(1/2), ||A|| <= 1, and D and S diagonal,

    (I - 2 A D A^T)^T (I - 2 A D A^T) = I - 4 A D A^T + 4 A D (A^T A) D A^T <= I - 4 A (D - D^2) A^T <= I.

W^T is a convolution with a filter and W its adjoint, for either padding and every image size.
"""

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

from skewconv.nn.eval_operator import Size, at_precision, compute_dtype
from skewconv.nn.gains import with_gain
from skewconv.nn.power_iteration import LastStep
from skewconv.nn.primitives import ResidualStep, fitted
from skewconv.nn.proven_conv import SquareConv2d
from skewconv.ops.convolution import adjoint_filter, convolve, residual_step
from skewconv.ops.gram_row_sums import gram_row_sums, gram_row_sums_upper_bound
from skewconv.ops.norms import norm_upper_bound
from skewconv.ops.torch_modes import without_autocast
from skewconv.rigor import round_down

# Filters that are smaller than the root of its inverse lose their residual: what they round to would be larger.
LARGEST_SCALE = 2.0**60
# Power steps of CPL from a fixed start, so that two layers with the same weights have the same estimate.
_FRESH_STEPS = 30


class ResidualConv2d(SquareConv2d):
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi: 1-Lipschitz, and the identity where relu is zero.

    The residual has max(in_channels * stride^2, out_channels) channels: missing ones are zero, surplus ones dropped.
    """

    weight: nn.Parameter

    @property
    def channels(self) -> int:
        return max(self.folded_channels, self.out_channels)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        filters = (self.channels, self.channels, self.kernel_size, self.kernel_size)
        return {"weight": filters, "bias": (self.channels,)}

    def _draw(self) -> None:
        # As in nn.Conv2d, whose scale does not matter here.
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """(0, 1), by the scale that is proven in eval mode, for images of any size."""
        self._proven()
        return 0.0, 1.0

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

    def _map(self, x: Tensor) -> Tensor:
        z = fitted(x, self.stride, self.channels)
        with without_autocast(x.device):
            scale = self.scale
        return residual_step(z, self.weight, scale, self.bias, self.padding_mode)[:, : self.out_channels]

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> ResidualStep:
        given = {"weight": self.weight, "scale": self.scale, "bias": self.bias, **self._shapes_of(input_shape)}
        return with_gain(ResidualStep(**given, stride=self.stride, padding_mode=self.padding_mode), (0.0, 1.0))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, padding_mode={self.padding_mode!r}"


class SLL2d(ResidualConv2d):
    """y = x - 2 W T^-1 relu(W^T x + b) with T_ii = sum_j |W^T W|_ij q_j / q_i, q positive and learned.

    >>> layer = SLL2d(4, 4, 3).eval()
    >>> layer(torch.randn(1, 4, 8, 8)).shape, layer.gain_bounds()
    (torch.Size([1, 4, 8, 8]), (0.0, 1.0))

    T - W^T W has a dominant diagonal once it is scaled by q, so that T^(-1/2) W^T W T^(-1/2) <= I: the layer is
    1-Lipschitz (see :mod:`skewconv.nn.residual_conv`), for both paddings and every image size. In eval mode the row
    sums are rounded up and their inverses down, to what is stored; there is no epsilon.

    The arguments are those of nn.Conv2d, with limits that :mod:`skewconv.nn.proven_conv` names.

    Reference: Araujo, Havens, Delattre, Allauzen, Hu, "A unified algebraic perspective on Lipschitz neural networks",
    2023. Their T has 1e-6 in it, which makes the layer slightly more than 1-Lipschitz.
    """

    log_q: nn.Parameter

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {**super()._shapes(), "log_q": (self.channels,)}

    def _draw(self) -> None:
        super()._draw()
        nn.init.zeros_(self.log_q)

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

    >>> layer = CPL2d(4, 4, 3).eval()
    >>> layer(torch.randn(1, 4, 8, 8)).shape, layer.gain_bounds()
    (torch.Size([1, 4, 8, 8]), (0.0, 1.0))

    In eval mode ||W|| is a proven upper bound for both paddings and every image size
    (:func:`skewconv.ops.norm_upper_bound`), so that the layer is 1-Lipschitz (see
    :mod:`skewconv.nn.residual_conv`). In training it is estimated by power iteration around a small torus, on a vector
    that is kept, one step for every change of the weights.

    The arguments are those of nn.Conv2d, with limits that :mod:`skewconv.nn.proven_conv` names.

    Reference: Meunier, Delattre, Araujo, Allauzen, "A dynamical system perspective for Lipschitz neural networks",
    2022.
    """

    power_vector: Tensor

    def _draw(self) -> None:
        super()._draw()
        side = 2 * self.kernel_size + 2
        vector = self.weight.new_empty(1, self.channels, side, side)
        if not self.weight.is_meta:
            start = torch.linspace(1, 2, vector.numel(), device=self.weight.device)
            vector.copy_(start.cos().view_as(vector))
            for _ in range(_FRESH_STEPS):
                vector.copy_(self._power_step(self.weight.float(), vector)[0])
        self.register_buffer("power_vector", vector)
        self._last_step = LastStep()

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
        self._last_step.ends_with_backward(norm)
        return torch.where(norm > 0, 1 / norm.square().clamp_min(1 / LARGEST_SCALE), 0.0)

    def _scale_lower_bound(self, sources: Sequence[Tensor]) -> Tensor:
        norm = norm_upper_bound(sources[0])
        scale = round_down(1 / Fraction(norm) ** 2) if norm > 0 else 0.0
        return torch.tensor(scale, dtype=torch.float64)


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x).clamp_min(torch.finfo(x.dtype).tiny)
