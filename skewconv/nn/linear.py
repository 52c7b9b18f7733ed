"""Linear layers with orthonormal rows or columns, and with rows of length one."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.checks import check_counts
from skewconv.nn.eval_operator import EvalOperator, ProvenOperator, Size, at_precision, compute_dtype
from skewconv.nn.gains import with_gain
from skewconv.nn.matrix_functions import exponential_columns
from skewconv.nn.primitives import linear_module
from skewconv.nn.soc.skew_parametrization import FreeHalf, assemble, packed_shape, taps_of
from skewconv.ops.torch_modes import uncompiled, values_at_hand, without_autocast
from skewconv.rigor import non_expansive_scale, spectral_norm_upper_bound

_ONE_TAP = taps_of((1,))


class _Linear(nn.Module):
    """y = W x + b with a matrix W that is made of parameters; the bias starts at zero."""

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
        name, shape = self._parameter()
        self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @abstractmethod
    def _parameter(self) -> tuple[str, tuple[int, int]]:
        """Name and shape of the parameter that the matrix is made of."""

    def reset_parameters(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class OrthogonalLinear(_Linear, EvalOperator):
    """y = Q x + b with Q the first rows or columns of exp(A), A = (P - P^T) / 2 skew of size m = max(in, out).

    >>> import torch
    >>> layer = OrthogonalLinear(8, 3).eval()
    >>> gram = layer.weight @ layer.weight.T
    >>> bool((gram - torch.eye(3)).abs().max() < 1e-5), layer.gain_bounds()[1] <= 1
    (True, True)

    Q has orthonormal rows if in >= out, and orthonormal columns if in <= out. In eval mode it is computed in float64,
    kept until the parameters change, and scaled by about one rounding error so that its norm is proven to be <= 1.

    The entries of P below its diagonal are the parameters. A step of SGD turns Q as far as it turns the last layer of
    the paper's authors, a convolution of one tap with L = (M - M^T) / 2 divided by its norm, which is near sqrt(2).

    Args:
        in_features, out_features: sizes of the last axis of input (*, in) and output (*, out).

    Reference: Lezcano-Casado & Martínez-Rubio, "Cheap orthogonal constraints in neural networks", 2019.
    """

    lower_triangle: nn.Parameter

    @property
    def size(self) -> int:
        return max(self.in_features, self.out_features)

    def _parameter(self) -> tuple[str, tuple[int, int]]:
        # Packed as the centre tap of a filter is.
        return "lower_triangle", packed_shape(self.size)

    def reset_parameters(self) -> None:
        """A Gaussian skew matrix whose angles fill [-pi, pi] by Wigner's semicircle law; the bias is zero."""
        nn.init.normal_(self.lower_triangle, std=math.pi / math.sqrt(self.size))
        super().reset_parameters()

    @property
    def weight(self) -> Tensor:
        """Q, (out_features, in_features)."""
        return self._matrix().clone()

    @uncompiled
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self._matrix(), self.bias)

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """Proven (min, max) of the singular values of Q in eval mode."""
        gain: tuple[float, float] = self._proven().gain
        return gain

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Linear:
        return with_gain(linear_module(self.weight, self.bias), self.gain_bounds())

    def _matrix(self) -> Tensor:
        if self.training:
            raw = self.lower_triangle
            return self._exponential(raw, compute_dtype(raw), may_wait=values_at_hand(raw.device)).to(raw.dtype)
        return self._operator_in_eval()

    def _sources(self) -> list[Tensor]:
        return [self.lower_triangle]

    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenOperator:
        exact = self._exponential(sources[0], torch.float64)
        scale, gain = non_expansive_scale(exact, sources[0].dtype)
        return ProvenOperator((exact * scale).to(sources[0]), scale, gain)

    def _with_derivative(self, sources: Sequence[Tensor], proven: ProvenOperator, size: Size) -> Tensor:
        return (self._exponential(sources[0], torch.float64) * proven.scale).to(proven.operator)

    def _exponential(self, lower: Tensor, dtype: torch.dtype, *, may_wait: bool = True) -> Tensor:
        generator = at_precision(lower, dtype) / 2
        skew = assemble(FreeHalf(None, generator[None], None, _ONE_TAP, self.size))[..., 0]
        with without_autocast(generator.device):
            if self.in_features <= self.out_features:
                return exponential_columns(skew, self.in_features, may_wait=may_wait)
            return exponential_columns(skew, self.out_features, inverse=True, may_wait=may_wait).T

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # The network of the package has A divided by a power of two near 1 / sqrt(m).
        if (stored := state_dict.pop(f"{prefix}raw_generator", None)) is not None:
            state_dict[f"{prefix}lower_triangle"] = stored * math.ldexp(2.0, -round(math.log2(self.size) / 2))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class NormalizedLinear(_Linear):
    """y_i = <w_i / ||w_i||, x> + b_i: every row has length one, so each logit is 1-Lipschitz.

    >>> import torch
    >>> layer = NormalizedLinear(8, 3)
    >>> layer.weight.norm(dim=1).round(decimals=5).tolist()
    [1.0, 1.0, 1.0]

    As a map to all the logits its norm may be as large as the root of their number: the bound is that of the matrix.

    Reference: Singla, Singla, Feizi, "Improved deterministic l2 robustness on CIFAR-10 and CIFAR-100", 2022 (last layer
    normalisation).
    """

    raw_weight: nn.Parameter

    def _parameter(self) -> tuple[str, tuple[int, int]]:
        return "raw_weight", (self.out_features, self.in_features)

    def reset_parameters(self) -> None:
        """Rows in uniformly random directions, of length near one; the bias is zero."""
        nn.init.normal_(self.raw_weight, std=1 / math.sqrt(self.in_features))
        super().reset_parameters()

    @property
    def weight(self) -> Tensor:
        """The matrix with rows of length one (a row of zeros stays zero), (out_features, in_features)."""
        return F.normalize(self.raw_weight, dim=1, eps=torch.finfo(self.raw_weight.dtype).tiny)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """(0, the proven norm of the matrix)."""
        return 0.0, spectral_norm_upper_bound(self.weight.detach())

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Linear:
        return linear_module(self.weight, self.bias)
