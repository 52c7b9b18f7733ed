"""p(J) x and its exact gradients, whatever the engine multiplies by J with.

The gradients are those of the truncated polynomial, by the adjoint recurrence; no tape is kept through the steps.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from skewconv.ops.engines.channels import Cut, add_, fit
from skewconv.ops.series import Recurrence

# lambda and u of one step, and the sign of their product.
Pair = tuple[Tensor, Tensor, float]


class Action(Protocol):
    """How an engine multiplies its states by J, given its own arrangement of the filter."""

    @property
    def cut(self) -> Cut:
        """The channels that matter; ``cut.groups`` counts the blocks along ``dim``."""

    @property
    def dim(self) -> int:
        """The axis of a state along which channels lie."""

    @property
    def stacks(self) -> bool:
        """Whether the gradients of all steps are better taken together."""

    def adjoint(self) -> "Action":
        """The action on the adjoint's channels."""

    def arrange(self, state: Tensor) -> Tensor:
        """The same values in the memory order the products want."""

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """J state + factor * back, the first ``rows`` channels of each group, as a new tensor."""

    def operator_grad(self, pairs: Sequence[Pair], operator: Tensor, total: Tensor | None) -> Tensor:
        """Total (zero at first) plus the gradients of sign * <lambda, J u> in the operator."""


def joined(pairs: Sequence[Pair], dim: int, along: int) -> list[Pair]:
    """The pairs with equal channels (along ``dim``) joined ``along`` another axis, the widest first."""
    if len(pairs) == 1:
        return list(pairs)
    alike: dict[tuple[int, int], list[Pair]] = {}
    for pair in pairs:
        alike.setdefault((pair[0].shape[dim], pair[1].shape[dim]), []).append(pair)
    return [_join(alike[widths], along) for widths in sorted(alike, reverse=True)]


def _join(pairs: list[Pair], along: int) -> Pair:
    if len(pairs) == 1:
        return pairs[0]
    signed = [grad if sign > 0 else -grad for grad, _, sign in pairs]
    return torch.cat(signed, along), torch.cat([state for _, state, _ in pairs], along), 1.0


def plain(x: Tensor, operator: Tensor, steps: Recurrence, action: Action) -> Tensor:
    """p(J) x on the autograd tape: the reference, differentiable any number of times."""
    cut, dim = action.cut, action.dim
    y = steps.coefficients[0] * fit(x, dim, cut.groups, cut.outputs)
    before, now, factor = None, x, 0.0
    for k in range(steps.degree):
        rows = cut.outputs if k == steps.degree - 1 else cut.channels
        before, now = now, action.product(now, operator, rows, before, factor)
        y = y + steps.coefficients[k + 1] * fit(now, dim, cut.groups, cut.outputs)
        factor = steps.backs[k] if k < len(steps.backs) else 0.0
    return y


def forward(
    x: Tensor, operator: Tensor, steps: Recurrence, action: Action, keep: int = 0
) -> tuple[Tensor, list[Tensor]]:
    """p(J) x in place, and the last ``keep`` of u_1 .. u_{n-1}."""
    cut, dim = action.cut, action.dim
    keep = max(0, min(keep, steps.degree - 1))
    # Widened channels have lost the order in memory, which every addition below would pay for.
    y = steps.coefficients[0] * action.arrange(fit(x, dim, cut.groups, cut.outputs))
    terms = [x]
    for k in range(steps.degree):
        rows = cut.outputs if k == steps.degree - 1 else cut.channels
        back, factor = (terms[-2], steps.backs[k - 1]) if k else (None, 0.0)
        following = action.product(terms[-1], operator, rows, back, factor)
        add_(y, following, steps.coefficients[k + 1], dim, cut.groups)
        terms.append(following)
        del terms[: -max(2, keep + 1)]
    return y, terms[-1 - keep : -1]


def backward(
    grad: Tensor,
    x: Tensor,
    terms: list[Tensor],
    operator: Tensor,
    steps: Recurrence,
    action: Action,
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
    cut, dim, degree = action.cut, action.dim, steps.degree
    coefficients = steps.adjoint().coefficients
    together = action.stacks and len(terms) == degree - 1
    pairs: list[Pair] = []
    total = None if degree else torch.zeros_like(operator)
    above: Tensor | None = None
    grad = action.arrange(grad)
    now = coefficients[degree] * grad
    for k in range(degree - 1, -1, -1):
        pairs.append((now, terms[-1] if k else x, 1.0 if k % 2 else -1.0))
        if k == 0 or not together:
            total = action.operator_grad(pairs, operator, total)
            pairs = []
        if k == 0 and not input_grad:
            break
        factor = steps.backs[k] if above is not None else 0.0
        below = action.product(now, operator, cut.channels if k else cut.inputs, above, factor)
        add_(below, grad, coefficients[k], dim, cut.groups)
        above, now = now, below
        if k > 2 and len(terms) == 2:
            earlier = action.product(terms[0], operator, cut.channels, None, 0.0)
            terms[:] = [earlier.neg_().add_(terms[1]).div_(steps.backs[k - 2]), terms[0]]
        else:
            del terms[-1:]
    assert total is not None
    if not input_grad:
        return None, total
    return now if degree else fit(now, dim, cut.groups, cut.inputs), total


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for this device; devices that do not know it, such as meta, have it off."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the dtype of their operands: a recurrence is cast once, at its entry."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()


class _Polynomial(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: Tensor, steps: Recurrence, action: Action, recompute: bool) -> Tensor:
        keep = (2 if recompute else steps.degree) if ctx.needs_input_grad[1] else 0
        y, terms = forward(x, operator, steps, action, keep)
        # What the backward pass can make again it may also give up on the way, so it is not saved for a second one.
        ctx.spent = terms if recompute else None
        ctx.save_for_backward(x, operator, *([] if recompute else terms))
        ctx.arguments = steps, action, keep
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        steps, action, keep = ctx.arguments
        x, operator, *terms = ctx.saved_tensors
        needs_x, needs_operator = ctx.needs_input_grad[:2]
        # The engine that runs backward has the caller's autocast state, which may differ from that of forward.
        with without_autocast(grad.device):
            if torch.is_grad_enabled():
                wanted = [t for t, needed in ((x, needs_x), (operator, needs_operator)) if needed]
                y = plain(x, operator, steps, action)
                found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, materialize_grads=True))
                return next(found) if needs_x else None, next(found) if needs_operator else None, None, None, None
            if needs_operator:
                if ctx.spent is not None:
                    terms, ctx.spent = ctx.spent or forward(x, operator, steps, action, keep)[1], []
                both = backward(grad, x, terms, operator, steps, action, input_grad=needs_x)
                return *both, None, None, None
            x_grad, _ = forward(action.arrange(grad), operator, steps.adjoint(), action.adjoint())
            return x_grad, None, None, None, None


def tracing() -> bool:
    """Whether a compiler or a function transform looks on, for which the recurrence is written out."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def run(x: Tensor, operator: Tensor, steps: Recurrence, action: Action, *, recompute: bool) -> Tensor:
    """p(J) x, with the hand-written backward pass where one is of use."""
    if tracing():
        return plain(x, operator, steps, action)
    if torch.is_grad_enabled() and (x.requires_grad or operator.requires_grad):
        result: Tensor = _Polynomial.apply(x, operator, steps, action, recompute)  # type: ignore[no-untyped-call]
        return result
    return forward(x, operator, steps, action)[0]
