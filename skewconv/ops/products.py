"""Products of large matrices in float32, by the faster of the two libraries that PyTorch has for processors.

``a @ b`` runs in MKL, which uses AVX-512 on Intel's processors only. oneDNN, which convolves, uses it on all of them,
and multiplies twice as fast where the arithmetic units are 512 bits wide too (AMD from Zen 5 on).
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from skewconv.ops.torch_modes import tracing
from skewconv.records import cpu_model

# Multiply-adds from which a product outweighs its call, and in a stack the copy of its result.
_LEAST_WORK, _LEAST_STACKED = 2**21, 2**22


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b: (..., m, k) and (k, n) -> (..., m, n), or two stacks of matrices; differentiable at any order."""
    if b.dim() != 2 or a.dim() < 2 or not _is_faster(a.shape[:-1].numel(), b, _LEAST_WORK):
        return a @ b
    made: Tensor = _Product.apply(a.flatten(0, -2), b)  # type: ignore[no-untyped-call]
    return made.unflatten(0, a.shape[:-1])


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """torch.bmm(a, b): (batch, m, k) and (batch, k, n) -> (batch, m, n)."""
    if _on_tape(a, b) or not _is_faster(a.shape[1], b, _LEAST_STACKED):
        return torch.bmm(a, b)
    made = a.new_empty(len(a), a.shape[1], b.shape[2])
    for target, left, right in zip(made, a, b, strict=True):
        target.copy_(_product(left, right))
    return made


def baddbmm_(total: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> None:
    """total.baddbmm_(a, b, alpha=alpha, beta=beta): total = beta * total + alpha * a @ b, in place."""
    if _on_tape(a, b) or not _is_faster(a.shape[1], b, _LEAST_STACKED):
        total.baddbmm_(a, b, alpha=alpha, beta=beta)
        return
    if beta != 1.0:
        total.mul_(beta) if beta else total.zero_()
    for target, left, right in zip(total, a, b, strict=True):
        target.add_(_product(left, right), alpha=alpha)


def _product(a: Tensor, b: Tensor) -> Tensor:
    # For a matrix that is part of a much wider one it has no fast kernel.
    right = b if b.is_contiguous() or b.mT.is_contiguous() else b.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, right.mT, None, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _product(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,), (a, b), (needs_a, needs_b) = grads, ctx.saved_tensors, ctx.needs_input_grad
        return matmul(grad, b.mT) if needs_a else None, matmul(a.mT, grad) if needs_b else None


def by_onednn(x: Tensor) -> bool:
    """True where large products of tensors such as x are left to oneDNN, which wants the factors dense."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and not tracing() and onednn_is_faster()


def _on_tape(a: Tensor, b: Tensor) -> bool:
    return torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)


def _is_faster(rows: int, b: Tensor, least: int) -> bool:
    return rows * b.shape[-2] * b.shape[-1] >= least and by_onednn(b)


@lru_cache(maxsize=1)
def onednn_is_faster() -> bool:
    """True where oneDNN uses AVX-512 and MKL does not: on a processor that has it and is not Intel's."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return str(torch.backends.cpu.get_cpu_capability()) == "AVX512" and "Intel" not in (cpu_model() or "Intel")
