"""A parametrization that gives a convolution or linear layer of PyTorch a proven norm."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from skewconv.checks import check_positive
from skewconv.errors import ArgumentError
from skewconv.nn.eval_operator import EvalCache
from skewconv.ops.convolution import convolve
from skewconv.ops.norms import norm_upper_bound
from skewconv.rigor import spectral_norm_upper_bound

Layer = TypeVar("Layer", bound=nn.Module)
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Pixels an axis of the image on which power iteration runs, and steps at the start.
_SIDE, _FIRST_STEPS = 12, 30


def proven_norm(module: Layer, name: str = "weight", *, norm: float = 1.0) -> Layer:
    """Divide the weight of a layer by a proven bound of the layer's own norm, whatever the size of its images.

    >>> import torch
    >>> from skewconv.nn import lipschitz_upper_bound
    >>> layer = proven_norm(nn.Conv2d(3, 8, 3, padding=1)).eval()
    >>> 0.98 < lipschitz_upper_bound(layer, (3, 16, 16)) < 1 + 1e-6
    True

    ``torch.nn.utils.parametrizations.spectral_norm`` divides by the norm of the weight as a matrix, which may be three
    times too small for a 3 x 3 convolution, and by an estimate. Here the norm is that of the convolution: in training
    its estimate by power iteration on an image, one step a pass, with its gradient; in evaluation a proven upper bound,
    rounding included, kept until the weight changes, whose gradient in the weight is left out.

    Args:
        module: nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d with padding by zeros or circular; changed in place.
        name: of the parameter.
        norm: that the layer shall have at most.

    Returns:
        the module. ``torch.nn.utils.parametrize.remove_parametrizations`` makes it a plain one with the same weight.
    """
    if not isinstance(module, _KINDS):
        allowed = ", ".join(f"nn.{kind.__name__}" for kind in _KINDS)
        raise ArgumentError(f"proven_norm takes {allowed}, got {type(module).__name__}")
    padding_mode = getattr(module, "padding_mode", "zeros")
    if padding_mode not in ("zeros", "circular"):
        raise ArgumentError(
            f"padding_mode={padding_mode!r} repeats pixels, so that the layer has no norm that holds for its filter; "
            "use 'zeros' or 'circular'"
        )
    groups = getattr(module, "groups", 1)
    parametrize.register_parametrization(module, name, ProvenNorm(getattr(module, name), groups, norm))
    return module


class ProvenNorm(nn.Module):
    vector: Tensor

    def __init__(self, weight: Tensor, groups: int, norm: float) -> None:
        super().__init__()
        self.groups, self.norm = groups, check_positive(norm, "norm")
        size = (max(_SIDE, k) for k in weight.shape[2:])
        self.register_buffer("vector", torch.randn(1, weight.shape[1] * groups, *size).to(weight))
        self._cache: EvalCache[float] = EvalCache()
        with torch.no_grad():
            for _ in range(_FIRST_STEPS):
                self._step(weight)

    def forward(self, weight: Tensor) -> Tensor:
        if not self.training:
            bound = self._cache.get(self, [weight], "bound", lambda: self._norm_upper_bound(weight.detach()))
            return weight * (self.norm / bound)
        with torch.no_grad():
            image = self._step(weight.detach())
        # The gradient of the largest singular value is that of <u, J v> for its vectors.
        estimate = (self._image(self.vector.clone(), weight) * F.normalize(image.flatten(), dim=0).view_as(image)).sum()
        return weight * (self.norm / estimate)

    def _image(self, x: Tensor, weight: Tensor) -> Tensor:
        linear = weight.dim() == 2
        return F.linear(x, weight) if linear else convolve(x, weight, padding_mode="circular", groups=self.groups)

    def _step(self, weight: Tensor) -> Tensor:
        """v <- J^T J v, normalised; J v."""
        image, *rest = torch.func.vjp(lambda x: self._image(x, weight), self.vector)
        back = rest[0](image)[0]
        self.vector.copy_(F.normalize(back.flatten(), dim=0).view_as(back))
        return self._image(self.vector, weight)

    def _norm_upper_bound(self, weight: Tensor) -> float:
        linear = weight.dim() == 2
        return spectral_norm_upper_bound(weight) if linear else norm_upper_bound(weight, groups=self.groups)

    def extra_repr(self) -> str:
        return f"norm={self.norm:g}"
