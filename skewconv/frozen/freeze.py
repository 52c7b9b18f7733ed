"""freeze: a model for inference, in which everything that depends on the weights alone is computed once."""

import copy
from collections.abc import Iterable

from torch import Tensor, nn

from skewconv.checks import check_positive
from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn.lowering import Chooser, lipschitz_upper_bound, lower
from skewconv.nn.memory_format import following, inside_a_network
from skewconv.nn.module_tools import for_inference, unwrapped
from skewconv.ops.torch_modes import tracing


class FrozenModel(nn.Module):
    """A frozen model: call it as the original; it refuses inputs of another size.

    Args:
        model: the lowered modules.
        input_shape: the shape of one input, without the batch axis.
        tol: what was allowed between its outputs and the original's.
    """

    def __init__(self, model: nn.Module, input_shape: tuple[int, ...], tol: float) -> None:
        super().__init__()
        self.model, self.input_shape, self.tol = model, tuple(input_shape), tol
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.input_shape:
            raise ShapeError(
                f"this model was frozen for inputs of shape (batch, {', '.join(map(str, self.input_shape))}), got "
                f"{tuple(x.shape)}; freeze the original again for the new size"
            )
        if tracing():
            return self.model(x)
        with inside_a_network():
            y = self.model(x)
        return following(y, x)

    def train(self, mode: bool = True) -> "FrozenModel":
        """Frozen models have no training mode."""
        if mode:
            raise ArgumentError("a frozen model cannot be trained; train the original and freeze it again")
        return super().train(False)

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """Proven for the frozen operators themselves."""
        return lipschitz_upper_bound(self.model, input_shape)

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        """The frozen modules: a certificate of this model is of the function that it stores."""
        return self.model


def freeze(
    model: nn.Module, input_shape: Iterable[int], tol: float = 1e-6, *, choose: Chooser | None = None
) -> FrozenModel:
    """A plain, fast inference model with the same outputs: the model lowered within a tolerance.

    >>> import torch
    >>> from skewconv.models import LipConvnet
    >>> model = LipConvnet(5, in_channels=1, input_size=8, width=4).eval()
    >>> frozen = freeze(model, (1, 8, 8))
    >>> x = torch.rand(2, 1, 8, 8)
    >>> torch.testing.assert_close(frozen(x), model(x), atol=1e-5, rtol=0)

    Convolutions with circular padding become one product per frequency, small ones with zero padding one matrix, large
    ones keep their convolutions, with a normalised filter and the fewest steps that a tight bound of its norm allows.
    Each new layer has a gain that is proven for what it stores.

    Args:
        model: any module; layers of this library are frozen, others are copied.
        input_shape: the shape of one input, without the batch axis. The frozen model takes this size only.
        tol: the largest difference of the outputs from the original's in exact arithmetic, relative to the activations'
            norms; what rounding adds in the model's precision comes on top.
        choose: decides between forms of layers that can take several, by size for example
            (see :func:`skewconv.export.within_budget`); by default each takes the fastest.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {type(model).__name__}")
    tol, shape = check_positive(tol, "tol"), tuple(input_shape)
    inner = for_inference(copy.deepcopy(unwrapped(model)))
    return FrozenModel(lower(inner, shape, tol, choose=choose), shape, tol)
