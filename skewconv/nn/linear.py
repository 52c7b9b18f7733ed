"""Linear layers with orthonormal rows or columns, and with rows of length one."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.checks import check_counts
from skewconv.nn.eval_operator import EvalOperator, Size
from skewconv.nn.matrix_exponential import exponential_columns
from skewconv.nn.plain_parts import linear_module
from skewconv.nn.precision import at_precision, compute_dtype
from skewconv.nn.protocol import Float64Program, Shape
from skewconv.nn.protocol.products import matrix_program
from skewconv.nn.soc.free_half import assemble, packed_shape, taps_of
from skewconv.ops.torch_modes import values_at_hand, without_autocast
from skewconv.rigor import non_expansive_scale, spectral_norm_upper_bound

_ONE_TAP = taps_of((1,))


class ProvenMatrix(NamedTuple):
    """A matrix as stored, the scale it was built with, and the proven (min, max) of its singular values."""

    matrix: Tensor
    scale: float
    gain: tuple[float, float]


class OrthogonalLinear(EvalOperator):
    """y = Q x + b with Q the first rows or columns of exp(A), A = (P - P^T) / 2 skew of size m = max(in, out).

    >>> import torch
    >>> layer = OrthogonalLinear(8, 3).eval()
    >>> gram = layer.weight @ layer.weight.T
    >>> bool((gram - torch.eye(3)).abs().max() < 1e-5), layer.lipschitz_upper_bound((8,)) <= 1
    (True, True)

    Q has orthonormal rows if in >= out, and orthonormal columns if in <= out. In eval mode it is computed in float64,
    kept until the parameters change, and scaled by about one rounding error so that its norm is proven to be <= 1.

    The entries of P below its diagonal are the parameters. A step of SGD turns Q as far as it turns the last layer of
    the paper's authors, a convolution of one tap with L = (M - M^T) / 2 divided by its norm, which is near sqrt(2).

    Args:
        in_features, out_features: sizes of the last axis of input (*, in) and output (*, out).

    Reference: Lezcano-Casado & Martínez-Rubio, "Cheap orthogonal constraints in neural networks", 2019.
    """

    is_affine: ClassVar[bool] = True

    lower: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.size = max(in_features, out_features)
        # Packed as the centre tap of a filter is.
        self.lower = nn.Parameter(torch.empty(packed_shape(self.size), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @property
    def bias_entries(self) -> int:
        """How many numbers the bias has."""
        return self.out_features

    def reset_parameters(self) -> None:
        """A Gaussian skew matrix whose angles fill [-pi, pi] by Wigner's semicircle law; the bias is zero."""
        nn.init.normal_(self.lower, std=math.pi / math.sqrt(self.size))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def weight(self) -> Tensor:
        """Q, (out_features, in_features)."""
        return self._matrix().clone()

    @property
    def generator(self) -> Tensor:
        """The entries of A below its diagonal, packed."""
        return self.lower / 2

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self._matrix(), self.bias)

    def gain_bounds(self) -> tuple[float, float]:
        """Proven (min, max) of the singular values of Q in eval mode."""
        gain: tuple[float, float] = self._proven().gain
        return gain

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """The proven norm of Q in eval mode, at most 1."""
        return self.gain_bounds()[1]

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """One product with the matrix, which is computed once."""
        return matrix_program(self.weight, self.bias, input_shape)

    def frozen_form(self, input_shape: Shape, output_shape: Shape, tol: float) -> nn.Linear:
        """The matrix as it is in eval mode."""
        return linear_module(self.weight, self.bias)

    def _matrix(self) -> Tensor:
        if self.training:
            may_wait = values_at_hand(self.lower.device)
            return self._exponential(self.lower, compute_dtype(self.lower), may_wait=may_wait).to(self.lower.dtype)
        return self._operator_in_eval()

    def _sources(self) -> list[Tensor]:
        return [self.lower]

    def _definition(self) -> str:
        return f"OrthogonalLinear({self.in_features}, {self.out_features})"

    def _operator_form(self, size: Size) -> tuple[tuple[int, ...], torch.dtype]:
        return (self.out_features, self.in_features), self.lower.dtype

    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenMatrix:
        exact = self._exponential(sources[0], torch.float64)
        scale, gain = non_expansive_scale(exact, sources[0].dtype)
        return ProvenMatrix((exact * scale).to(sources[0]), scale, gain)

    def _with_derivative(self, sources: Sequence[Tensor], proven: ProvenMatrix, size: Size) -> Tensor:
        return (self._exponential(sources[0], torch.float64) * proven.scale).to(proven.matrix)

    def _exponential(self, lower: Tensor, dtype: torch.dtype, *, may_wait: bool = True) -> Tensor:
        generator = at_precision(lower, dtype) / 2
        skew = assemble(None, generator[None], None, _ONE_TAP, self.size)[..., 0]
        with without_autocast(generator.device):
            if self.in_features <= self.out_features:
                return exponential_columns(skew, self.in_features, may_wait=may_wait)
            return exponential_columns(skew, self.out_features, inverse=True, may_wait=may_wait).T

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # Older files have A itself, or A divided by a power of two near 1 / sqrt(m); other powers of two are exact.
        units = {"generator": 1.0, "raw_generator": math.ldexp(1.0, -round(math.log2(self.size) / 2))}
        for name, unit in units.items():
            if (stored := state_dict.pop(f"{prefix}{name}", None)) is not None:
                state_dict[f"{prefix}lower"] = stored * (2 * unit)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class NormalizedLinear(nn.Module):
    """y_i = <w_i / ||w_i||, x> + b_i: every row has length one, so each logit is 1-Lipschitz.

    >>> import torch
    >>> layer = NormalizedLinear(8, 3)
    >>> layer.weight.norm(dim=1).round(decimals=5).tolist()
    [1.0, 1.0, 1.0]

    As a map to all the logits its norm may be as large as the root of their number: the bound is that of the matrix.

    Reference: Singla, Singla, Feizi, "Improved deterministic l2 robustness on CIFAR-10 and CIFAR-100", 2022 (last layer
    normalisation).
    """

    is_affine: ClassVar[bool] = True

    raw_weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.raw_weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @property
    def bias_entries(self) -> int:
        """How many numbers the bias has."""
        return self.out_features

    def reset_parameters(self) -> None:
        """Rows in uniformly random directions, of length near one; the bias is zero."""
        nn.init.normal_(self.raw_weight, std=1 / math.sqrt(self.in_features))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def weight(self) -> Tensor:
        """The matrix with rows of length one (a row of zeros stays zero), (out_features, in_features)."""
        return F.normalize(self.raw_weight, dim=1, eps=torch.finfo(self.raw_weight.dtype).tiny)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """A proven bound of the spectral norm of the matrix as it is."""
        return spectral_norm_upper_bound(self.weight.detach())

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """One product with the matrix, which is computed once."""
        return matrix_program(self.weight, self.bias, input_shape)

    def frozen_form(self, input_shape: Shape, output_shape: Shape, tol: float) -> nn.Linear:
        """The matrix as it is in eval mode."""
        return linear_module(self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
