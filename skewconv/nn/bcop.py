"""Block convolution orthogonal parameterization (BCOP): an orthogonal filter as a product of two-tap filters."""

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple, check_counts
from skewconv.choices import FactorOrder
from skewconv.errors import ArgumentError
from skewconv.nn.bcop_factors import basis_for_projector, bjorck, block_convolution
from skewconv.nn.eval_operator import Size
from skewconv.nn.gains import with_gain
from skewconv.nn.orthogonal_conv import OrthogonalConv2d
from skewconv.nn.precision import at_precision, compute_dtype
from skewconv.nn.primitives import Convolution
from skewconv.nn.proven_conv import ProvenOperator
from skewconv.ops.filters import odd_filter, transpose_filter
from skewconv.ops.fourier import circular_convolve
from skewconv.ops.torch_modes import without_autocast
from skewconv.rigor import filter_gram_defect_upper_bound, non_expansive_scale

# From singular values of 1e-10, Björck's iteration reaches 1 to the precision of float64 in 65 steps.
_MOST_ITERATIONS = 80


class BCOP2d(OrthogonalConv2d):
    """F = H * [P_1; I - P_1] * [Q_1, I - Q_1] * ... with H orthogonal and P, Q symmetric projectors of rank m / 2.

    >>> import torch
    >>> layer = BCOP2d(2, 8, 3, stride=2).eval()
    >>> x = torch.randn(1, 2, 8, 8)
    >>> layer(x).shape, bool((layer.inverse(layer(x)) - x).abs().max() < 1e-5)
    (torch.Size([1, 8, 4, 4]), True)

    Each two-tap factor P + (I - P) z is unitary for |z| = 1, so their product is an orthogonal convolution with
    circular padding, whose rows are cut to c_out or columns to c_in stride^2. H comes from Björck's iteration, the
    projectors from Cholesky factors (:func:`basis_for_projector`). In eval mode the filter is computed in float64, kept
    until the parameters change, and scaled by about one rounding error so that its norm is proven to be <= 1.

    Args:
        in_channels, out_channels: of the images.
        kernel_size: k, for a k x k filter, odd or even; the padding keeps the size.
        stride: by invertible downsampling.
        padding, dilation, groups: as in nn.Conv2d, where they mean what the layer does: padding "same" or its number,
            no dilation, one group.
        bias, device, dtype: as in nn.Conv2d.
        padding_mode: "circular".
        bjorck_iterations: steps in training; in eval mode the iteration goes on until it has converged.
        order: "height-first": the factors shift along height and width in turn. "lconvnet": they begin with the width
            where in_channels stride^2 > out_channels, as in LConvNet, so that its weights fit; neither is better.

    Reference: Li, Haque, Anil, Lucas, Grosse, Jacobsen, "Preventing gradient attenuation in Lipschitz constrained
    convolutional networks", 2019.
    """

    raw_orthogonal: nn.Parameter
    raw_projectors: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple = 1,
        *places: Any,
        bjorck_iterations: int = 20,
        order: FactorOrder = "height-first",
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, *places, **options)
        check_counts(bjorck_iterations=bjorck_iterations)
        if order not in get_args(FactorOrder):
            raise ArgumentError(f"order must be one of {', '.join(map(repr, get_args(FactorOrder)))}, got {order!r}")
        self.bjorck_iterations, self.order = bjorck_iterations, order

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        m, factors = max(self.folded_channels, self.out_channels), 2 * (self.kernel_size - 1)
        # Only the first c_out rows of H survive, and any orthonormal rows complete to an orthogonal matrix.
        return {"raw_orthogonal": (self.out_channels, m), "raw_projectors": (factors, m, m // 2)}

    def _draw(self) -> None:
        # Uniformly random orthonormal matrices, where Björck's iteration is fastest.
        for raw in (self.raw_orthogonal, *(() if self.raw_projectors is None else self.raw_projectors)):
            raw.copy_(nn.init.orthogonal_(torch.empty(raw.shape, device=raw.device)))

    @property
    def weight(self) -> Tensor:
        """F in the layout of nn.Conv2d: (c_out, c_in stride^2, k, k)."""
        return self._operator().clone()

    def gain_bounds(self) -> tuple[float, float]:
        """Proven (min, max) of the singular values in eval mode, for every circular image size."""
        return self._proven().gain

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> Convolution:
        """One convolution with the filter of eval mode."""
        low, high = self.gain_bounds()
        # Where channels are cut off, some inputs vanish.
        gain = (low if self.folded_channels <= self.out_channels else 0.0, high)
        return with_gain(Convolution(**self._shared(input_shape), weight=self.weight), gain)

    def _linear(self, x: Tensor) -> Tensor:
        return circular_convolve(x, self._operator())

    def _linear_adjoint(self, y: Tensor) -> Tensor:
        return circular_convolve(y, transpose_filter(odd_filter(self._operator())))

    def _trained(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        return self._product(sources, compute_dtype(sources[0]), self.bjorck_iterations).to(sources[0].dtype)

    def _exact(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        return self._product(sources, torch.float64, _MOST_ITERATIONS)

    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenOperator:
        exact, dtype = self._exact(sources, size), sources[0].dtype
        scale, gain = non_expansive_scale(exact, dtype, filter_gram_defect_upper_bound)
        return ProvenOperator((exact * scale).to(sources[0]), scale, gain)

    def _definition(self) -> str:
        return f"{super()._definition()}, {self.order}"

    def _operator_form(self, size: Size) -> tuple[tuple[int, ...], torch.dtype]:
        kernel = (self.kernel_size, self.kernel_size)
        return (self.out_channels, self.folded_channels, *kernel), self.raw_orthogonal.dtype

    def _product(self, sources: Sequence[Tensor], dtype: torch.dtype, iterations: int) -> Tensor:
        raw_orthogonal, *rest = (at_precision(source, dtype) for source in sources)
        # Projectors of rank zero, or none: nothing to learn.
        raw_projectors = rest[0] if rest else raw_orthogonal.new_empty(self._shapes()["raw_projectors"])
        with without_autocast(raw_orthogonal.device):
            rows = bjorck(raw_orthogonal, iterations)
            bases = basis_for_projector(raw_projectors, iterations).unbind(0)
            first = int(self.order == "lconvnet" and self.folded_channels > self.out_channels)
            factors = [(basis, (first + index) % 2) for index, basis in enumerate(bases)]
            if self.folded_channels >= self.out_channels:
                taps = block_convolution(rows, factors)
            else:
                # The transposed product, from its other end: only c_in rows are carried through the factors.
                start = torch.eye(self.folded_channels, rows.shape[1], dtype=dtype, device=rows.device)
                taps = (block_convolution(start, factors[::-1]) @ rows.mT).mT
        return taps.permute(2, 3, 0, 1).contiguous()
