"""A polynomial of J as a monic recurrence: u_0 = x, u_{k+1} = J u_k + b_k u_{k-1}, p(J) x = sum_k a_k u_k.

The gradients are those of the truncated polynomial, by the adjoint recurrence; no tape is kept through the steps. This
is the only place where p(J) x is written; an engine says how to multiply by J.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import zip_longest
from typing import Any, ClassVar

import torch
from torch import Tensor

from skewconv.ops.products import baddbmm, bmm
from skewconv.ops.torch_modes import tracing, without_autocast

# lambda and u of one step, and the sign of their product.
StepPair = tuple[Tensor, Tensor, float]


@dataclass(frozen=True)
class Recurrence:
    """The monic three-term recurrence of a polynomial: ``coefficients`` a_0..a_n, ``backs`` b_1..b_{n-1}."""

    coefficients: tuple[float, ...]
    backs: tuple[float, ...]

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    def adjoint(self) -> "Recurrence":
        """The recurrence of p(-J) = p(J)^H."""
        return Recurrence(tuple(-a if k % 2 else a for k, a in enumerate(self.coefficients)), self.backs)

    def reversible(self, rho: float) -> "Recurrence":
        """The same polynomial with every b_k > 0, so that the recurrence can also be run backwards.

        Where some b_k is zero, the basis becomes that of b_1 = rho^2 / 2 and b_k = rho^2 / 4: multiples of Chebyshev
        polynomials on [-i rho, i rho].
        """
        if all(back > 0 for back in self.backs):
            return self
        backs = [Fraction(rho) ** 2 / (2 if k == 1 else 4) for k in range(1, self.degree)]
        old, new = _in_powers([Fraction(back) for back in self.backs]), _in_powers(backs)
        left = [Fraction(0)] * (self.degree + 1)
        for a, powers in zip(self.coefficients, old, strict=True):
            left[: len(powers)] = [c + Fraction(a) * u for c, u in zip(left, powers, strict=False)]
        for k in range(self.degree, -1, -1):
            left[:k] = [a - left[k] * u for a, u in zip(left, new[k][:k], strict=False)]
        return Recurrence(tuple(map(float, left)), tuple(map(float, backs)))


def _in_powers(backs: list[Fraction]) -> list[list[Fraction]]:
    """u_0, u_1, ... as coefficients of powers of J."""
    basis = [[Fraction(1)], [Fraction(0), Fraction(1)]]
    for back in backs:
        pairs = zip_longest([Fraction(0), *basis[-1]], basis[-2], fillvalue=Fraction(0))
        basis.append([a + back * b for a, b in pairs])
    return basis


@dataclass(frozen=True)
class ChannelWidths:
    """Each of the ``groups`` reads its first ``inputs`` and keeps its first ``outputs`` of ``channels``.

    The first product needs only the inputs, the last only the outputs.
    """

    groups: int
    channels: int
    inputs: int
    outputs: int

    def adjoint(self) -> "ChannelWidths":
        return replace(self, inputs=self.outputs, outputs=self.inputs)

    def times(self, numbers: int) -> "ChannelWidths":
        """Those of one group, whose channels have several numbers each."""
        return ChannelWidths(1, numbers * self.channels, numbers * self.inputs, numbers * self.outputs)


def fit_channels(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """The first ``channels`` of each of the ``groups`` blocks along ``dim``, or zeros appended up to that number."""
    missing = channels - tensor.shape[dim] // groups
    if missing == 0:
        return tensor
    if missing < 0 and groups == 1:
        return tensor.narrow(dim, 0, channels)
    blocks = tensor.unflatten(dim, (groups, -1))
    if missing < 0:
        return blocks.narrow(dim + 1, 0, channels).flatten(dim, dim + 1)
    zeros = blocks.new_zeros(*blocks.shape[: dim + 1], missing, *blocks.shape[dim + 2 :])
    return torch.cat([blocks, zeros], dim + 1).flatten(dim, dim + 1)


def add_channels_(target: Tensor, source: Tensor, factor: float, dim: int, groups: int) -> None:
    """target += factor * source on the channels, counted from the first of each group, that both have."""
    if factor == 0.0:
        return
    if target.shape[dim] == source.shape[dim]:
        target.add_(source, alpha=factor)
        return
    common = min(target.shape[dim], source.shape[dim]) // groups
    pair = [t.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, common) for t in (target, source)]
    pair[0].add_(pair[1], alpha=factor)


@dataclass(frozen=True)
class JacobianProducts(ABC):
    """How an engine multiplies its states by J, given its own arrangement of the filter (the operator)."""

    widths: ChannelWidths
    dim: ClassVar[int]  # the axis of a state's channels

    def arrange(self, state: Tensor) -> Tensor:
        """The state in the memory order that the products want."""
        return state.contiguous()

    def joins_steps(self, x: Tensor, operator: Tensor) -> bool:
        """True where the gradients of all steps are better taken together."""
        return True

    @abstractmethod
    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """J state + factor * back, the first ``rows`` channels of each group, as a new tensor."""

    @abstractmethod
    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        """Total (zero at first) plus the gradients of sign * <lambda, J u> in the operator."""


@dataclass(frozen=True)
class MatrixProducts(JacobianProducts):
    """States are rows (batch, rows, d), the operator is J itself (batch, d, d), real or complex.

    The groups are parts of each row, such as real and imaginary ones, and the operator mixes them.
    """

    dim = 2

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        parts = self.widths.groups
        columns = state.shape[2] // parts
        if rows < self.widths.channels or columns < self.widths.channels:
            operator = self._first(operator, rows, columns).flatten(3).flatten(1, 2)
        if back is None or factor == 0.0:
            return bmm(state, operator.mT)
        return baddbmm(fit_channels(back, 2, parts, rows), state, operator.mT, beta=factor)

    def _first(self, operator: Tensor, rows: int, columns: int) -> Tensor:
        """The first rows and columns of each part, (batch, parts, rows, parts, columns): a view."""
        parts = (self.widths.groups, -1)
        return operator.unflatten(1, parts).unflatten(3, parts)[:, :, :rows, :, :columns]

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        # lambda^T conj(u).
        for grad, state, sign in joined_steps(pairs, 2, 1):
            block = bmm(grad.mT, state.conj().resolve_conj())
            if total is None and block.shape == operator.shape:
                total = block if sign > 0 else block.neg_()
                continue
            total = torch.zeros_like(operator) if total is None else total
            rows, columns = (n // self.widths.groups for n in block.shape[1:])
            self._first(total, rows, columns).add_(self._first(block, rows, columns), alpha=sign)
        assert total is not None
        return total


def joined_steps(pairs: Sequence[StepPair], dim: int, along: int) -> list[StepPair]:
    """The pairs with equal channels (along ``dim``) joined ``along`` another axis, the widest first.

    All steps but the first and the last read and write every channel, so that their gradients are one product.
    """
    if len(pairs) == 1:
        return list(pairs)
    alike: dict[tuple[int, int], list[StepPair]] = {}
    for pair in pairs:
        alike.setdefault((pair[0].shape[dim], pair[1].shape[dim]), []).append(pair)
    joined = []
    for _, same in sorted(alike.items(), key=lambda item: item[0], reverse=True):
        signed = [grad if sign > 0 else -grad for grad, _, sign in same]
        states = [state for _, state, _ in same]
        joined.append((torch.cat(signed, along), torch.cat(states, along), 1.0) if len(same) > 1 else same[0])
    return joined


def apply_recurrence(
    x: Tensor, operator: Tensor, steps: Recurrence, products: JacobianProducts, *, recompute: bool = False
) -> Tensor:
    """p(J) x, with the hand-written backward pass where one is of use."""
    if tracing():
        return _run(x, operator, steps, products, on_tape=True)[0]
    if torch.is_grad_enabled() and (x.requires_grad or operator.requires_grad):
        result: Tensor = _RecurrenceFunction.apply(x, operator, steps, products, recompute)  # type: ignore[no-untyped-call]
        return result
    return _run(x, operator, steps, products)[0]


def _run(
    x: Tensor, operator: Tensor, steps: Recurrence, products: JacobianProducts, keep: int = 0, on_tape: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """p(J) x, and the last ``keep`` of u_1 .. u_{n-1}; summed in place, or on the tape, differentiable at any order."""
    widths, dim = products.widths, products.dim
    keep = max(0, min(keep, steps.degree - 1))
    # Widened channels have lost the order in memory, which every addition below would pay for.
    y = steps.coefficients[0] * products.arrange(fit_channels(x, dim, widths.groups, widths.outputs))
    terms = [x]
    for k in range(steps.degree):
        rows = widths.outputs if k == steps.degree - 1 else widths.channels
        back, factor = (terms[-2], steps.backs[k - 1]) if k else (None, 0.0)
        following = products.product(terms[-1], operator, rows, back, factor)
        if on_tape:
            y = y + steps.coefficients[k + 1] * fit_channels(following, dim, widths.groups, widths.outputs)
        else:
            add_channels_(y, following, steps.coefficients[k + 1], dim, widths.groups)
        terms.append(following)
        del terms[: -max(2, keep + 1)]
    return y, terms[-1 - keep : -1]


def _exact_gradients(
    grad: Tensor,
    x: Tensor,
    terms: list[Tensor],
    operator: Tensor,
    steps: Recurrence,
    products: JacobianProducts,
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
    together = len(terms) == degree - 1 and products.joins_steps(x, operator)
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
        y, terms = _run(x, operator, steps, products, keep=keep)
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
                y, _ = _run(x, operator, steps, products, on_tape=True)
                found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, materialize_grads=True))
                return next(found) if needs_x else None, next(found) if needs_operator else None, None, None, None
            if needs_operator:
                if ctx.disposable_terms is not None:
                    terms = ctx.disposable_terms or _run(x, operator, steps, products, keep=keep)[1]
                    ctx.disposable_terms = []
                both = _exact_gradients(grad, x, terms, operator, steps, products, input_grad=needs_x)
                return *both, None, None, None
            adjoint = replace(products, widths=products.widths.adjoint())
            x_grad, _ = _run(products.arrange(grad), operator, steps.adjoint(), adjoint)
            return x_grad, None, None, None, None
