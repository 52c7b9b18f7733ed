"""The evaluation filter as an operator that torch.compile does not look into.

Whether a cached filter is still fresh depends on the content of the parameters, which a compiler cannot know. The
operator receives the parameters, so that the graph depends on them, and a number by which to find the layer.
"""

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_filter import SkewFilter

_layers: "weakref.WeakValueDictionary[int, SkewFilter]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


def enlist(layer: "SkewFilter") -> int:
    """A number that stands for this layer as long as it lives."""
    number = next(_numbers)
    _layers[number] = layer
    return number


# The schemas are written out: torch 2.6 does not infer one from list[Tensor].
@torch.library.custom_op("skewconv::eval_filter", mutates_args=(), schema="(Tensor[] parameters, int number) -> Tensor")
def eval_filter(parameters: list[Tensor], number: int) -> Tensor:
    """The normalised filter of layer ``number`` in evaluation mode."""
    return _layers[number].filter_in_eval(parameters).clone(memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "skewconv::eval_filter_backward",
    mutates_args=(),
    schema="(Tensor[] parameters, Tensor grad, int number) -> Tensor[]",
)
def eval_filter_backward(parameters: list[Tensor], grad: Tensor, number: int) -> list[Tensor]:
    """The gradients of :func:`eval_filter` in the parameters."""
    return _layers[number].filter_gradients_in_eval(parameters, grad)


@eval_filter.register_fake
def _(parameters: list[Tensor], number: int) -> Tensor:
    layer = _layers[number]
    return parameters[0].new_empty(layer.filter_shape, dtype=layer.filter_dtype)


@eval_filter_backward.register_fake
def _(parameters: list[Tensor], grad: Tensor, number: int) -> list[Tensor]:
    return [torch.empty_like(p) for p in parameters]


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    parameters, ctx.number = inputs
    ctx.save_for_backward(*parameters)


def _backward(ctx: Any, grad: Tensor) -> Any:
    return eval_filter_backward(list(ctx.saved_tensors), grad, ctx.number), None


eval_filter.register_autograd(_backward, setup_context=_setup)
