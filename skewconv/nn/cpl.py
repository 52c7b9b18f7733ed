"""Convex potential layers (CPL): a residual convolution scaled by a proven bound of its filter's norm."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from skewconv.checks import IntOrTuple
from skewconv.nn.eval_operator import Size
from skewconv.nn.power_iteration import LastStep
from skewconv.nn.precision import at_precision
from skewconv.nn.residual_conv import LARGEST_SCALE, ResidualConv2d
from skewconv.ops.convolution import adjoint_filter, convolve
from skewconv.ops.norms import norm_upper_bound
from skewconv.rigor import round_down

# From a fixed start, so that two layers with the same weights have the same estimate.
_FRESH_STEPS = 30


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
        padding, dilation, groups: as in nn.Conv2d, where they mean what the layer does: padding "same" or its number,
            no dilation, one group.
        bias: whether there is a b.
        padding_mode: "zeros" or "circular".
        hidden_channels: of relu; as many as the residual has by default.
        device, dtype: as in nn.Conv2d.

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

    def _operator_form(self, size: Size) -> tuple[tuple[int, ...], torch.dtype]:
        return (), self.weight.dtype

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
