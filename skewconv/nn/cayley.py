"""Orthogonal convolutions by the Cayley transform, one frequency at a time."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from skewconv.errors import DtypeError, NotFiniteError
from skewconv.nn.eval_operator import ProvenOperator, Size, at_precision, compute_dtype
from skewconv.nn.gains import gain_bounds, spectral_layer, with_gain
from skewconv.nn.matrix_functions import accretive_inverse
from skewconv.nn.primitives import Spectral
from skewconv.nn.proven_conv import Orthogonal
from skewconv.ops.convolution import Geometry, odd_filter
from skewconv.ops.engines.spectral_engine import multiply_frequencies, symbol
from skewconv.ops.fourier import count_of_real_frequencies, half_of
from skewconv.ops.torch_modes import autocasting, without_autocast
from skewconv.rigor import non_expansive_scale

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


class Cayley2d(Orthogonal):
    """y^(w) = Q(w) x^(w) with Q = (I - A)(I + A)^-1 at every frequency w, A(w) skew-Hermitian from a k x k filter.

    >>> import torch
    >>> layer = Cayley2d(4, 8, 3, stride=2).eval()
    >>> x = torch.randn(1, 4, 8, 8)
    >>> layer(x).shape, bool((layer(x) - layer.bias.view(-1, 1, 1)).norm() <= x.norm() * (1 + 1e-5))
    (torch.Size([1, 8, 4, 4]), True)

    The padding is circular and the filter that results is as large as the image. In eval mode the matrices Q(w) are
    computed in float64, kept for the image sizes in use until the parameters change, and scaled by about one rounding
    error so that their norms are proven to be <= 1.

    The arguments are those of nn.Conv2d, with limits that :mod:`skewconv.nn.proven_conv` names.

    Reference: Trockman & Kolter, "Orthogonalizing convolutional layers with the Cayley transform", 2021. Their learned
    scale is of the transform's norm at one image size; here it is of the filter's, so that any size can be used.
    """

    raw_weight: nn.Parameter
    alpha: nn.Parameter

    def _shapes_of_group(self) -> dict[str, tuple[int, ...]]:
        inputs, outputs = self.group_channels
        return {"raw_weight": (outputs, inputs, self.kernel_size, self.kernel_size), "alpha": ()}

    def _draw(self) -> None:
        # As in nn.Conv2d, with a scale equal to its norm.
        for raw, alpha in zip(
            self.raw_weight.view(self.groups, -1, *self.raw_weight.shape[-3:]), self.alpha.view(-1), strict=True
        ):
            nn.init.kaiming_uniform_(raw, a=math.sqrt(5))
            alpha.copy_(raw.norm())

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """Proven (min, max) of the singular values in eval mode, for inputs (c_in, h, w); (0, 1) for those of any size.

        A size whose matrices could not be proven to have norms of at most one is refused when it is met.
        """
        if input_shape is None:
            return 0.0, max(self._proven((1, 1)).gain[1], 1.0)
        return self._proven(self._folded_size(input_shape)).gain

    def frequency_matrices(self, input_shape: tuple[int, ...]) -> Tensor:
        """Q(w) at the frequencies of ``rfft2`` for inputs (c_in, h, w): (h', w' // 2 + 1, c_out, c_in stride^2).

        With groups (h', w' // 2 + 1, groups, c_out / groups, c_in stride^2 / groups).
        """
        size = self._folded_size(input_shape)
        real, pairs = _at_frequencies(self._operator(size), size)
        return half_of(real, pairs, size).unflatten(0, (size[0], -1))

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> Spectral:
        """One real matrix for each frequency, and the transforms as matrices."""
        size, shared = self._folded_size(input_shape), self._shared(input_shape)
        # The exact matrices are rounded and scaled as those of eval mode are.
        exact = _at_frequencies(self._exact(self._sources(), size), size)
        real, pairs = (part.reshape(-1, *part.shape[-2:]) for part in exact)
        shared |= {"groups": self.groups, "upsamples": False, "device": self.raw_weight.device}
        shared |= {"gain": self.gain_bounds(input_shape), "injective": self.folded_channels <= self.out_channels}
        shared["tol"] = 1e-6 if tol is None else tol
        made = spectral_layer(real, pairs, self.raw_weight.dtype, size, **shared)
        if tol is not None:
            return made
        # A bound of the lowering is one of this layer, too, whose matrices were scaled otherwise by a rounding error.
        (low, high), (least, most) = gain_bounds(made), shared["gain"]
        return with_gain(made, (min(low, least), max(high, most)))

    def _linear(self, x: Tensor) -> Tensor:
        return self._apply_per_frequency(x, self._operator((x.shape[-2], x.shape[-1])))

    def _linear_adjoint(self, y: Tensor) -> Tensor:
        return self._apply_per_frequency(y, self._operator((y.shape[-2], y.shape[-1])).mH)

    def _apply_per_frequency(self, x: Tensor, matrices: Tensor) -> Tensor:
        size = (x.shape[-2], x.shape[-1])
        if x.dtype != self.raw_weight.dtype and not autocasting(x.device):
            raise DtypeError(f"the input is {x.dtype} and the layer {self.raw_weight.dtype}; convert one of them")
        if len(x) == 0:
            return x.new_zeros(0, self.groups * matrices.shape[-2], *size)  # MKL's transform refuses an empty batch
        # In mixed precision training multiplies in bfloat16, by matrices that are made in float32.
        half = self.training and autocasting(x.device) and torch.get_autocast_dtype(x.device.type) == torch.bfloat16
        with without_autocast(x.device):
            parts = [part.mT.reshape(-1, *part.mT.shape[-2:]) for part in _at_frequencies(matrices, size)]
            image = multiply_frequencies(x.to(torch.bfloat16 if half else matrices.real.dtype), parts, self.groups)
        return image if half else image.to(self.raw_weight.dtype)

    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenOperator:
        exact, dtype = self._exact(sources, size), _COMPLEX[compute_dtype(sources[0])]
        scale, (low, high) = non_expansive_scale(exact, dtype)
        if high > 1:
            raise NotFiniteError(f"the matrices of Cayley2d have a proven norm of {high} > 1; make alpha smaller")
        matrices = (exact * scale).to(dtype)
        return ProvenOperator(matrices.to(sources[0].device), scale, (low, high))

    def _joined(self, operators: list[Tensor]) -> Tensor:
        return torch.stack(operators, -3)

    def _computed_group(self, sources: Sequence[Tensor], size: Size, dtype: torch.dtype, *, exact: bool) -> Tensor:
        raw, alpha = (at_precision(source, dtype) for source in sources)
        with without_autocast(raw.device):
            weight = alpha * raw / raw.norm().clamp_min(torch.finfo(dtype).tiny)
            odd = odd_filter(weight)
            geometry = Geometry.of(tuple(odd.shape[2:]), "circular", self.dilation, 1)
            real, pairs = (part[:, 0] for part in symbol(odd, geometry, size))
            # Images of one and two pixels a side have real frequencies only.
            return torch.cat([cayley(real).to(pairs.dtype), cayley(pairs) if len(pairs) else pairs])

    def _folded_size(self, input_shape: tuple[int, ...]) -> Size:
        return self._shapes_of(input_shape)["output_shape"][1:]


def cayley(symbol: Tensor) -> Tensor:
    """(I - A)(I + A)^-1 over -2 V (I + A)^-1, with A = U - U^H + V^H V for the square part U and the rest V of W.

    The shorter side of W, (*batch, rows, columns), becomes orthonormal.
    """
    if symbol.shape[-2] < symbol.shape[-1]:
        return cayley(symbol.mH).mH
    n = symbol.shape[-1]
    u, v = symbol[..., :n, :], symbol[..., n:, :]
    identity = torch.eye(n, dtype=symbol.dtype, device=symbol.device)
    # I + A has the Hermitian part I + V^H V >= I: it is always invertible, and its inverse no larger than 1.
    if symbol.shape[-2] == n:
        return 2 * accretive_inverse(identity + u - u.mH) - identity
    inverse = accretive_inverse(identity + u - u.mH + v.mH @ v)
    return torch.cat([2 * inverse - identity, -2 * (v @ inverse)], dim=-2)


def _at_frequencies(matrices: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """Those at real frequencies, which come first, and those at one of each pair of conjugates."""
    alone = count_of_real_frequencies(size)
    return matrices[:alone].real, matrices[alone:]
