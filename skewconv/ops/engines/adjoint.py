"""p(J) x and its exact gradients, whatever the engine multiplies by J with.

The gradients are those of the truncated polynomial, by the adjoint recurrence; no tape is kept through the steps.
"""

from typing import Any

import torch
from torch import Tensor

from skewconv.ops.engines.channels import add_channels_, fit_channels
from skewconv.ops.engines.jacobian_products import JacobianProducts, StepPair
from skewconv.ops.series import Recurrence
from skewconv.ops.torch_modes import tracing, without_autocast


def apply_on_tape(x: Tensor, operator: Tensor, steps: Recurrence, products: JacobianProducts) -> Tensor:
    """p(J) x on the autograd tape: the reference, differentiable any number of times."""
    widths, dim = products.widths, products.dim
    y = steps.coefficients[0] * fit_channels(x, dim, widths.groups, widths.outputs)
    before, now, factor = None, x, 0.0
    for k in range(steps.degree):
        rows = widths.outputs if k == steps.degree - 1 else widths.channels
        before, now = now, products.product(now, operator, rows, before, factor)
        y = y + steps.coefficients[k + 1] * fit_channels(now, dim, widths.groups, widths.outputs)
        factor = steps.backs[k] if k < len(steps.backs) else 0.0
    return y


def apply_in_place(
    x: Tensor, operator: Tensor, steps: Recurrence, products: JacobianProducts, keep: int = 0
) -> tuple[Tensor, list[Tensor]]:
    """p(J) x in place, and the last ``keep`` of u_1 .. u_{n-1}."""
    widths, dim = products.widths, products.dim
    keep = max(0, min(keep, steps.degree - 1))
    # Widened channels have lost the order in memory, which every addition below would pay for.
    y = steps.coefficients[0] * products.arrange(fit_channels(x, dim, widths.groups, widths.outputs))
    terms = [x]
    for k in range(steps.degree):
        rows = widths.outputs if k == steps.degree - 1 else widths.channels
        back, factor = (terms[-2], steps.backs[k - 1]) if k else (None, 0.0)
        following = products.product(terms[-1], operator, rows, back, factor)
        add_channels_(y, following, steps.coefficients[k + 1], dim, widths.groups)
        terms.append(following)
        del terms[: -max(2, keep + 1)]
    return y, terms[-1 - keep : -1]


def exact_gradients(
    grad: Tensor,
    x: Tensor,
    terms: list[Tensor],
    operator: Tensor,
    steps: Recurrence,
    products: JacobianProducts,
    *,
    input_grad: bool,
) -> tuple[Tensor | None, Tensor]:
    """The exact gradients in x and the operator.

    lambda_n = a_n g, lambda_k = a_k g + J^H lambda_{k+1} + b_{k+1} lambda_{k+2}; the gradient in x is lambda_0, and
    step k gives the operator the gradient of <lambda_{k+1}, J u_k>. With J^H = -J the recurrence of
    mu_k = (-1)^k lambda_k has J itself, so no negated filter is needed.

    ``terms`` holds u_1 .. u_{n-1}, or only the last two of them: the others follow by running the recurrence backwards,
    u_{k-1} = (u_{k+1} - J u_k) / b_k. The list is emptied on the way, so that what it alone holds is freed.
    """
    widths, dim, degree = products.widths, products.dim, steps.degree
    coefficients = steps.adjoint().coefficients
    together = products.joins_steps and len(terms) == degree - 1
    pairs: list[StepPair] = []
    total = None if degree else torch.zeros_like(operator)
    above: Tensor | None = None
    grad = products.arrange(grad)
    now = coefficients[degree] * grad
    for k in range(degree - 1, -1, -1):
        pairs.append((now, terms[-1] if k else x, 1.0 if k % 2 else -1.0))
        if k == 0 or not together:
            total = products.operator_grad(pairs, operator, total)
            pairs = []
        if k == 0 and not input_grad:
            break
        factor = steps.backs[k] if above is not None else 0.0
        below = products.product(now, operator, widths.channels if k else widths.inputs, above, factor)
        add_channels_(below, grad, coefficients[k], dim, widths.groups)
        above, now = now, below
        if k > 2 and len(terms) == 2:
            earlier = products.product(terms[0], operator, widths.channels, None, 0.0)
            terms[:] = [earlier.neg_().add_(terms[1]).div_(steps.backs[k - 2]), terms[0]]
        else:
            del terms[-1:]
    assert total is not None
    if not input_grad:
        return None, total
    return now if degree else fit_channels(now, dim, widths.groups, widths.inputs), total


class _RecurrenceFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, operator: Tensor, steps: Recurrence, products: JacobianProducts, recompute: bool
    ) -> Tensor:
        keep = (2 if recompute else steps.degree) if ctx.needs_input_grad[1] else 0
        y, terms = apply_in_place(x, operator, steps, products, keep)
        # What the backward pass can make again it may also give up on the way, so it is not saved for a second one.
        ctx.disposable_terms = terms if recompute else None
        ctx.save_for_backward(x, operator, *([] if recompute else terms))
        ctx.arguments = steps, products, keep
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        steps, products, keep = ctx.arguments
        x, operator, *terms = ctx.saved_tensors
        needs_x, needs_operator = ctx.needs_input_grad[:2]
        # The engine that runs backward has the caller's autocast state, which may differ from that of forward.
        with without_autocast(grad.device):
            if torch.is_grad_enabled():
                wanted = [t for t, needed in ((x, needs_x), (operator, needs_operator)) if needed]
                y = apply_on_tape(x, operator, steps, products)
                found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, materialize_grads=True))
                return next(found) if needs_x else None, next(found) if needs_operator else None, None, None, None
            if needs_operator:
                if ctx.disposable_terms is not None:
                    terms = ctx.disposable_terms or apply_in_place(x, operator, steps, products, keep)[1]
                    ctx.disposable_terms = []
                both = exact_gradients(grad, x, terms, operator, steps, products, input_grad=needs_x)
                return *both, None, None, None
            x_grad, _ = apply_in_place(products.arrange(grad), operator, steps.adjoint(), products.adjoint())
            return x_grad, None, None, None, None


def apply_recurrence(
    x: Tensor, operator: Tensor, steps: Recurrence, products: JacobianProducts, *, recompute: bool
) -> Tensor:
    """p(J) x, with the hand-written backward pass where one is of use."""
    if tracing():
        return apply_on_tape(x, operator, steps, products)
    if torch.is_grad_enabled() and (x.requires_grad or operator.requires_grad):
        result: Tensor = _RecurrenceFunction.apply(x, operator, steps, products, recompute)  # type: ignore[no-untyped-call]
        return result
    return apply_in_place(x, operator, steps, products)[0]
