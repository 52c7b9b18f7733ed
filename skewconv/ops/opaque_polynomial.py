"""p(J) x as an operator of PyTorch, which a compiler does not look into.

A compiler that sees the recurrence writes out convolutions, and knows nothing of the engines, which choose by shapes at
run time and are faster on processors. So there it gets one operator for the forward pass, which also returns the states
that the backward pass needs, as its engine arranged them, and one for the backward pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Arranged
from skewconv.ops.engines.adjoint import apply_in_place, exact_gradients
from skewconv.ops.engines.application import Application
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.costs import Request
from skewconv.ops.engines.series_engine import memory_format
from skewconv.ops.plan import Recipe, carries, kept_recipe
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.torch_modes import compiling, ordinary_dispatch

# One way to write down everything but the tensors: schemas know numbers, words and lists of numbers.
_CALL = (
    "str series, float norm_bound, float[] coefficients, float truncation_error, int[] kernel, int[] dilation, "
    "int groups, str padding_mode, int outputs, bool inverse, str engine, bool recompute, int keep"
)


def is_opaque_here(x: Tensor, p: Polynomial, geometry: Geometry) -> bool:
    """Whether this is the place: under torch.compile, on a processor, where all engines keep terms of one size."""
    return (
        compiling()
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and geometry.padding_mode == "zeros"
        and carries(x.dtype, p)
    )


def opaque_polynomial(
    x: Tensor,
    weight: Tensor,
    p: Polynomial,
    geometry: Geometry,
    outputs: int,
    *,
    inverse: bool,
    engine: str,
    recompute: bool,
) -> Tensor:
    """p(J) x, or p(-J) x.

    Args:
        x: (batch, groups * inputs, *size), real.
        weight: (m, m / groups, *kernel).
        p: the polynomial.
        geometry: how the filter meets the image.
        outputs: how many channels of each group are kept.
        inverse: apply p(-J).
        engine: which engine runs, or "auto".
        recompute: keep memory independent of the degree.
    """
    terms = max(0, len(p.coefficients) - 2)
    keep = 1 + (min(2, terms) if recompute else terms) if weight.requires_grad else 0
    y, _ = _forward(
        x,
        weight,
        p.series,
        p.norm_bound,
        list(p.coefficients),
        p.truncation_error,
        list(geometry.kernel),
        list(geometry.dilation),
        geometry.groups,
        geometry.padding_mode,
        outputs,
        inverse,
        engine,
        recompute,
        keep,
    )
    made: Tensor = y
    return made


def _recipe(
    x: Tensor,
    weight: Tensor,
    series: str,
    norm_bound: float,
    coefficients: Sequence[float],
    truncation_error: float,
    kernel: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    padding_mode: PaddingMode,
    outputs: int,
    inverse: bool,
    engine: str,
    recompute: bool,
    keep: int,
) -> Recipe:
    p = Polynomial(series, norm_bound, tuple(coefficients), truncation_error)
    geometry = Geometry(tuple(kernel), tuple(dilation), groups, padding_mode)
    widths = ChannelWidths(groups, len(weight) // groups, x.shape[1] // groups, outputs)
    request = Request(
        len(x), tuple(x.shape[2:]), geometry, widths, p.degree, x.dtype, True, x.device.type, truncation_error
    )
    return kept_recipe(request, p, engine, inverse=inverse, recompute=recompute)


@torch.library.custom_op(
    "skewconv::polynomial", mutates_args=(), schema=f"(Tensor x, Tensor weight, {_CALL}) -> (Tensor, Tensor[])"
)
def _forward(x: Tensor, weight: Tensor, *call: Any) -> tuple[Tensor, list[Tensor]]:
    """p(J) x; and as many as are to be kept of x and of the last terms u_1 .. u_{n-1}, in this order, each flat."""
    with ordinary_dispatch(), torch.no_grad():
        recipe = _recipe(x, weight, *call)
        task, keep = recipe.task, call[-1]
        arranged = recipe.engine.arrange(x, task.geometry.within_reach(weight), task)
        products, state = arranged.products, arranged.order(x)
        y, terms = apply_in_place(state, arranged.operator, task.steps, products, keep - 1)
        made = arranged.restore(y).contiguous(memory_format=_order(x, weight, *call))
        return made, [_flat(products.arrange(kept), x) for kept in (state, *terms)[:keep]]


@torch.library.custom_op(
    "skewconv::polynomial_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor like, Tensor weight, Tensor[] states, bool of_x, bool of_weight, "
    f"{_CALL}) -> Tensor[]",
)
def _backward(
    grad: Tensor, like: Tensor, weight: Tensor, states: list[Tensor], of_x: bool, of_weight: bool, *call: Any
) -> list[Tensor]:
    """The gradients that are wanted of x, of which ``like`` has the shape, and of the filter."""
    with ordinary_dispatch(), torch.enable_grad():
        recipe = _recipe(like, weight, *call)
        task = recipe.task
        if not of_weight:
            back = Application(task.steps.adjoint(), task.geometry, task.widths.adjoint(), task.recompute)
            of_x_alone = recipe.engine.apply(grad, task.geometry.within_reach(weight), back).detach()
            return [of_x_alone.contiguous(memory_format=_order(like, weight, *call))]
        leaf = weight.detach().requires_grad_()
        arranged = recipe.engine.arrange(like, task.geometry.within_reach(leaf), task)
        with torch.no_grad():
            of_state, of_operator = exact_gradients(
                arranged.order(grad),
                *_shaped(states, like, arranged),
                arranged.operator,
                task.steps,
                arranged.products,
                input_grad=of_x,
            )
            # Images are only arranged otherwise, so that the way back is the adjoint of the way there.
            order = _order(like, weight, *call)
            of_images = [] if of_state is None else [arranged.restore(of_state).contiguous(memory_format=order)]
        (of_filter,) = torch.autograd.grad(arranged.operator, leaf, of_operator)
    return [*of_images, _in_order_of(weight, of_filter)]


def _order(x: Tensor, weight: Tensor, *call: Any) -> torch.memory_format:
    """Of the result, and of its gradient in x: that of the convolutions, whichever engine runs."""
    groups, padding_mode = call[6:8]
    return memory_format(weight.shape[0] // groups, tuple(x.shape[2:]), padding_mode)


def _in_order_of(like: Tensor, made: Tensor) -> Tensor:
    """The numbers where a compiler expects them."""
    expected = torch.empty_like(like)
    return made if made.stride() == expected.stride() else expected.copy_(made)


def _flat(state: Tensor, x: Tensor) -> Tensor:
    """The numbers in the order in which they lie in memory: a copy of what is x itself, as no operator returns that."""
    flat = state.as_strided((state.numel(),), (1,))
    return flat.clone() if flat.data_ptr() == x.data_ptr() else flat


def _shaped(states: list[Tensor], like: Tensor, arranged: Arranged) -> tuple[Tensor, list[Tensor]]:
    """x and the terms again, as the engine has them: the terms have all channels."""
    products = arranged.products
    first = arranged.order(torch.empty(like.shape, device="meta"))
    wide = list(first.shape)
    wide[products.dim] = products.widths.groups * products.widths.channels
    shapes = [list(first.shape), *(wide for _ in states[1:])]
    x, *terms = (
        state.as_strided(shape, products.arrange(torch.empty(shape, device="meta")).stride())
        for state, shape in zip(states, shapes, strict=True)
    )
    return x, terms


@_forward.register_fake
def _(x: Tensor, weight: Tensor, *call: Any) -> tuple[Tensor, list[Tensor]]:
    groups, outputs, keep = call[6], call[8], call[-1]
    shape = (x.shape[0], groups * outputs, *x.shape[2:])
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_order(x, weight, *call))
    pixels = x.shape[0]
    for side in x.shape[2:]:
        pixels = pixels * side
    return y, [x.new_empty(pixels * channels) for channels in (x.shape[1], *(weight.shape[0],) * (keep - 1))[:keep]]


@_backward.register_fake
def _(grad: Tensor, like: Tensor, weight: Tensor, states: list[Tensor], of_x: bool, of_weight: bool, *call: Any) -> Any:
    order = _order(like, weight, *call)
    made = [torch.empty(like.shape, dtype=like.dtype, device=like.device, memory_format=order)] if of_x else []
    return [*made, torch.empty_like(weight)] if of_weight else made


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, *ctx.call = inputs
    # The shape alone: the images themselves need not be kept beside the engine's arrangement of them.
    like = x.new_empty(1).expand(x.shape)
    ctx.save_for_backward(like, weight, *output[1])


def _gradients(ctx: Any, grad: Tensor, _: Any) -> Any:
    like, weight, *states = ctx.saved_tensors
    of_x, of_weight = ctx.needs_input_grad[:2]
    found = iter(_backward(grad, like, weight, states, of_x, of_weight, *ctx.call))
    return next(found) if of_x else None, next(found) if of_weight else None, *(None for _ in ctx.call)


_forward.register_autograd(_gradients, setup_context=_setup)
