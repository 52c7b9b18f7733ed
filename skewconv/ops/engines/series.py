"""The series engine: a polynomial of the Jacobian, by convolutions.

Both series run as one monic recurrence: u_0 = x, u_{k+1} = J u_k + b_k u_{k-1}, p(J) x = sum_k a_k u_k. Taylor has
b = 0; Chebyshev has b_1 = rho^2 / 2 and b_k = rho^2 / 4 after it. Monic, because then a step is one convolution and one
in-place addition.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.series import Polynomial


@dataclass(frozen=True)
class Recurrence:
    """The monic three-term recurrence of a polynomial: ``coefficients`` a_0..a_n, ``backs`` b_1..b_{n-1}."""

    coefficients: tuple[float, ...]
    backs: tuple[float, ...]

    @property
    def degree(self) -> int:
        """Number of convolutions."""
        return len(self.coefficients) - 1

    def adjoint(self) -> "Recurrence":
        """The recurrence of p(-J) = p(J)^H."""
        return Recurrence(tuple(-a if k % 2 else a for k, a in enumerate(self.coefficients)), self.backs)


@lru_cache(maxsize=1024)
def recurrence(polynomial: Polynomial) -> Recurrence:
    """The recurrence of p(J)."""
    degree = polynomial.degree
    if polynomial.series == "taylor":
        scales = [Fraction(1)] * (degree + 1)
        backs = [0.0] * max(0, degree - 1)
    else:
        # phi_k = s_k u_k with s_k = 2^(k-1) / rho^k, in exact arithmetic because s_k alone may overflow.
        rho = Fraction(polynomial.norm_bound)
        scales = [Fraction(1)] + [Fraction(2) ** (k - 1) / rho**k for k in range(1, degree + 1)]
        backs = [float(rho**2 / (2 if k == 1 else 4)) for k in range(1, degree)]
    coefficients = (float(Fraction(c) * s) for c, s in zip(polynomial.coefficients, scales, strict=True))
    return Recurrence(tuple(coefficients), tuple(backs))


@lru_cache(maxsize=1024)
def reversible_recurrence(polynomial: Polynomial) -> Recurrence:
    """The same polynomial with every b_k > 0, so that the recurrence can also be run backwards."""
    steps, rho = recurrence(polynomial), Fraction(polynomial.norm_bound)
    if polynomial.series == "chebyshev":
        return steps
    backs = [rho**2 / (2 if k == 1 else 4) for k in range(1, steps.degree)]
    basis = [[Fraction(1)], [Fraction(0), Fraction(1)]]
    for back in backs:
        basis.append(
            [a + back * b for a, b in zip_longest([Fraction(0), *basis[-1]], basis[-2], fillvalue=Fraction(0))]
        )
    left = [Fraction(a) for a in steps.coefficients]
    for k in range(steps.degree, -1, -1):
        left[:k] = [a - left[k] * u for a, u in zip(left, basis[k][:k], strict=False)]
    return Recurrence(tuple(map(float, left)), tuple(map(float, backs)))


@dataclass(frozen=True)
class Cut:
    """Which channels matter: each group reads its first ``inputs`` and keeps its first ``outputs`` of ``channels``."""

    groups: int
    channels: int
    inputs: int
    outputs: int

    def weights(self, weight: Tensor, degree: int) -> list[Tensor]:
        """The filter of each convolution: the first needs only the inputs, the last only the outputs."""
        return [self.rows(weight if k else weight[:, : self.inputs], last=k == degree - 1) for k in range(degree)]

    def rows(self, weight: Tensor, *, last: bool) -> Tensor:
        """The outputs of a filter that matter."""
        return narrow(weight, 0, self.groups, self.outputs) if last else weight

    def outputs_of(self, x: Tensor) -> Tensor:
        """u_0 on the channels that are kept."""
        return narrow(widen(x, 1, self.groups, self.channels), 1, self.groups, self.outputs)

    def adjoint(self) -> "Cut":
        """The cut of the adjoint map: what was read is kept, what was kept is read."""
        return Cut(self.groups, self.channels, self.outputs, self.inputs)


def narrow(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """The first ``channels`` of each of the ``groups`` blocks along ``dim``; a view where one group allows it."""
    if tensor.shape[dim] == groups * channels:
        return tensor
    if groups == 1:
        return tensor.narrow(dim, 0, channels)
    return tensor.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, channels).flatten(dim, dim + 1)


def widen(tensor: Tensor, dim: int, groups: int, channels: int) -> Tensor:
    """The adjoint of :func:`narrow`: zeros appended to each block up to ``channels``."""
    if tensor.shape[dim] == groups * channels:
        return tensor
    blocks = tensor.unflatten(dim, (groups, -1))
    shape = list(blocks.shape)
    shape[dim + 1] = channels - shape[dim + 1]
    return torch.cat([blocks, blocks.new_zeros(shape)], dim + 1).flatten(dim, dim + 1)


def _add_(target: Tensor, source: Tensor, factor: float, groups: int, dim: int = 1) -> None:
    """target += factor * source on the channels, counted from the first of each group, that both have."""
    if factor == 0.0:
        return
    common = min(target.shape[dim], source.shape[dim]) // groups
    pair = [t.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, common) for t in (target, source)]
    pair[0].add_(pair[1], alpha=factor)


def plain(x: Tensor, weight: Tensor, steps: Recurrence, geometry: Geometry, cut: Cut) -> Tensor:
    """p(J) x on the autograd tape: the reference, differentiable any number of times."""
    y = steps.coefficients[0] * cut.outputs_of(x)
    before, now = None, x
    for k, w in enumerate(cut.weights(weight, steps.degree)):
        following = geometry.convolve(now, w)
        if before is not None and steps.backs[k - 1]:
            back = widen(before, 1, cut.groups, cut.channels)
            following = following + steps.backs[k - 1] * narrow(back, 1, cut.groups, following.shape[1] // cut.groups)
        y = y + steps.coefficients[k + 1] * narrow(following, 1, cut.groups, cut.outputs)
        before, now = now, following
    return y


def forward(
    x: Tensor, weight: Tensor, steps: Recurrence, geometry: Geometry, cut: Cut, keep: int
) -> tuple[Tensor, list[Tensor]]:
    """p(J) x in place, and the last ``keep`` of u_1 .. u_{n-1}."""
    keep = max(0, min(keep, steps.degree - 1))
    y = steps.coefficients[0] * cut.outputs_of(x)
    terms = [x]
    for k, w in enumerate(cut.weights(weight, steps.degree)):
        following = geometry.convolve(terms[-1], w)
        if k:
            _add_(following, terms[-2], steps.backs[k - 1], cut.groups)
        _add_(y, following, steps.coefficients[k + 1], cut.groups)
        terms.append(following)
        del terms[: -max(2, keep + 1)]
    return y, terms[-1 - keep : -1]


def backward(
    grad: Tensor,
    x: Tensor,
    terms: list[Tensor],
    weight: Tensor,
    steps: Recurrence,
    geometry: Geometry,
    cut: Cut,
    *,
    input_grad: bool,
) -> tuple[Tensor | None, Tensor]:
    """The exact gradients in x and the filter, by the adjoint recurrence.

    lambda_n = a_n g, lambda_k = a_k g + J^H lambda_{k+1} + b_{k+1} lambda_{k+2} with J^H = -J; the gradient in x is
    lambda_0, and each step k gives the filter the gradient of <lambda_{k+1}, L * u_k>.

    ``terms`` holds u_1 .. u_{n-1}, or only the last two of them: the others follow by running the recurrence backwards,
    u_{k-1} = (u_{k+1} - J u_k) / b_k.
    """
    groups, degree = cut.groups, steps.degree
    weight_grad, adjoint = torch.zeros_like(weight), -weight
    above: Tensor | None = None
    now = steps.coefficients[degree] * grad
    for k, w in reversed(list(enumerate(cut.weights(weight, degree)))):
        step_grad = geometry.weight_grad(terms[-1] if k else x, now, w)
        _add_(weight_grad[:, : w.shape[1]], step_grad, 1.0, groups, dim=0)
        if k == 0 and not input_grad:
            return None, weight_grad
        columns = adjoint[:, : now.shape[1] // groups]
        below = geometry.convolve(now, columns if k else narrow(columns, 0, groups, cut.inputs))
        _add_(below, grad, steps.coefficients[k], groups)
        if above is not None:
            _add_(below, above, steps.backs[k], groups)
        above, now = now, below
        if k > 2 and len(terms) == 2:
            earlier = geometry.convolve(terms[0], weight).neg_().add_(terms[1]).div_(steps.backs[k - 2])
            terms = [earlier, terms[0]]
        else:
            terms = terms[:-1]
    return now if degree else cut.adjoint().outputs_of(now), weight_grad


class _Series(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, steps: Recurrence, geometry: Geometry, cut: Cut, recompute: bool
    ) -> Tensor:
        keep = (2 if recompute else steps.degree) if ctx.needs_input_grad[1] else 0
        y, terms = forward(x, weight, steps, geometry, cut, keep)
        ctx.save_for_backward(x, weight, *terms)
        ctx.arguments = steps, geometry, cut
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        steps, geometry, cut = ctx.arguments
        x, weight, *terms = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():
            wanted = [t for t, needed in ((x, needs_x), (weight, needs_weight)) if needed]
            y = plain(x, weight, steps, geometry, cut)
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, materialize_grads=True))
            return next(found) if needs_x else None, next(found) if needs_weight else None, None, None, None, None
        if needs_weight:
            x_grad, weight_grad = backward(grad, x, terms, weight, steps, geometry, cut, input_grad=needs_x)
            return x_grad, weight_grad, None, None, None, None
        x_grad, _ = forward(grad, weight, steps.adjoint(), geometry, cut.adjoint(), 0)
        return x_grad, None, None, None, None, None


def apply(
    x: Tensor, weight: Tensor, polynomial: Polynomial, geometry: Geometry, cut: Cut, *, inverse: bool, recompute: bool
) -> Tensor:
    """p(J) x, with the hand-written backward pass where one is of use."""
    steps = reversible_recurrence(polynomial) if recompute else recurrence(polynomial)
    if inverse:
        steps = steps.adjoint()
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return plain(x, weight, steps, geometry, cut)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        result: Tensor = _Series.apply(x, weight, steps, geometry, cut, recompute)  # type: ignore[no-untyped-call]
        return result
    return forward(x, weight, steps, geometry, cut, 0)[0]
