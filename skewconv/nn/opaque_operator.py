"""The operator of evaluation mode as an operator of PyTorch, which a compiler does not look into.

Whether a cached operator is still fresh depends on the values of the parameters, which a compiler cannot know. This one
receives the parameters, so that the graph depends on them; a number by which to find the layer, with its cache; and the
layer's definition in words. A program that is run where that number stands for another layer is served by any layer of
the same definition, which makes the same of the same parameters, or it is refused.
"""

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skewconv.errors import SkewconvError
from skewconv.ops.torch_modes import ordinary_dispatch

if TYPE_CHECKING:
    from skewconv.nn.eval_operator import EvalOperator

_layers: "weakref.WeakValueDictionary[int, EvalOperator]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


def enlist(layer: "EvalOperator") -> int:
    """A number that stands for this layer as long as it lives."""
    number = next(_numbers)
    _layers[number] = layer
    return number


def _layer(number: int, definition: str) -> "EvalOperator":
    layer = _layers.get(number)
    if layer is not None and layer._definition() == definition:
        return layer
    for other in list(_layers.values()):
        if other._definition() == definition:
            return other
    raise SkewconvError(
        f"this program needs a layer {definition}, and there is none in this process: it was compiled in another one. "
        "Compile it here, or make a program that needs nothing else: skewconv.freeze(model, input_shape), then export"
    )


def _size(height: int, width: int) -> tuple[int, ...]:
    return (height, width) if height else ()


# The schemas are written out: torch 2.6 does not infer one from list[Tensor].
@torch.library.custom_op(
    "skewconv::eval_operator",
    mutates_args=(),
    schema="(Tensor[] sources, SymInt height, SymInt width, int number, str definition) -> Tensor",
)
def eval_operator(sources: list[Tensor], height: int, width: int, number: int, definition: str) -> Tensor:
    """The operator that a layer makes of these parameters in evaluation mode, for images of this size, 0 for any."""
    with ordinary_dispatch(), torch.no_grad():
        operator = _layer(number, definition).operator_from(sources, _size(height, width))
        return operator.clone(memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "skewconv::eval_operator_backward",
    mutates_args=(),
    schema="(Tensor[] sources, Tensor grad, SymInt height, SymInt width, int number, str definition) -> Tensor[]",
)
def eval_operator_backward(
    sources: list[Tensor], grad: Tensor, height: int, width: int, number: int, definition: str
) -> list[Tensor]:
    """The gradients of :func:`eval_operator` in the parameters."""
    with ordinary_dispatch(), torch.enable_grad():
        leaves = [s.detach().requires_grad_() for s in sources]
        operator = _layer(number, definition).operator_from(leaves, _size(height, width))
        found = torch.autograd.grad(operator, leaves, grad, materialize_grads=True)
    return [g.contiguous() for g in found]


@eval_operator.register_fake
def _(sources: list[Tensor], height: int, width: int, number: int, definition: str) -> Tensor:
    shape, dtype = _layer(number, definition)._operator_form(_size(height, width))
    return sources[0].new_empty(shape, dtype=dtype)


@eval_operator_backward.register_fake
def _(sources: list[Tensor], grad: Tensor, height: int, width: int, number: int, definition: str) -> list[Tensor]:
    return [torch.empty_like(s, memory_format=torch.contiguous_format) for s in sources]


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    sources, *ctx.arguments = inputs
    ctx.save_for_backward(*sources)


def _backward(ctx: Any, grad: Tensor) -> Any:
    return eval_operator_backward(list(ctx.saved_tensors), grad, *ctx.arguments), None, None, None, None


eval_operator.register_autograd(_backward, setup_context=_setup)


def _members(tensors: list[Tensor], dims: list[int | None], index: int) -> list[Tensor]:
    return [t if d is None else t.select(d, index) for t, d in zip(tensors, dims, strict=True)]


@eval_operator.register_vmap
def _(info: Any, in_dims: Any, sources: list[Tensor], *arguments: Any) -> tuple[Tensor, int]:
    each = [eval_operator(_members(sources, in_dims[0], i), *arguments) for i in range(info.batch_size)]
    return torch.stack(each), 0


@eval_operator_backward.register_vmap
def _(info: Any, in_dims: Any, sources: list[Tensor], grad: Tensor, *arguments: Any) -> tuple[list[Tensor], list[int]]:
    grads = [_members([grad], in_dims[1:2], i)[0] for i in range(info.batch_size)]
    each = [eval_operator_backward(_members(sources, in_dims[0], i), g, *arguments) for i, g in enumerate(grads)]
    return [torch.stack(parts) for parts in zip(*each, strict=True)], [0] * len(sources)
