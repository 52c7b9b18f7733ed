"""Products of large matrices in float32, by the faster of the two libraries that PyTorch has for processors.

``a @ b`` runs in MKL, which uses AVX-512 on Intel's processors only. oneDNN, which convolves, uses it on all of them,
and multiplies twice as fast where the arithmetic units are 512 bits wide too (AMD from Zen 5 on).
"""

import contextlib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from skewconv.ops.torch_modes import autocasting, tracing

# x W^T + b; not differentiable, and private: where it is missing, MKL multiplies.
LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
# Multiply-adds from which a product outweighs its call, and in a stack the copy of its result.
_LEAST_WORK, _LEAST_STACKED = 2**21, 2**22
# AMD's number for Zen 5.
_LEAST_FAMILY = 26


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b; (..., m, k) and (k, n) may be multiplied by oneDNN. Differentiable at any order."""
    if not by_onednn(a, b) or a.dim() < 2 or b.dim() != 2 or not _is_large(a.shape[:-1].numel(), b, _LEAST_WORK):
        return a @ b
    made: Tensor = _Product.apply(a.flatten(0, -2), b)  # type: ignore[no-untyped-call]
    return made.unflatten(0, a.shape[:-1])


def addmm(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b for matrices (m, k) and (k, n), differentiable at any order."""
    return total + matmul(a, b) if by_onednn(a, b) else torch.addmm(total, a, b)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """torch.bmm(a, b): (batch, m, k) and (batch, k, n) -> (batch, m, n)."""
    if not _stack_by_onednn(a, b):
        return torch.bmm(a, b)
    made = a.new_empty(len(a), a.shape[1], b.shape[2])
    for target, left, right in zip(made, a, b, strict=True):
        target.copy_(onednn_product(left, right))
    return made


def baddbmm(total: Tensor, a: Tensor, b: Tensor, *, beta: float) -> Tensor:
    """beta * total + a @ b, a new tensor."""
    return bmm(a, b).add_(total, alpha=beta) if _stack_by_onednn(a, b) else torch.baddbmm(total, a, b, beta=beta)


def baddbmm_(total: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> None:
    """total.baddbmm_(a, b, alpha=alpha, beta=beta): total = beta * total + alpha * a @ b, in place."""
    if not _stack_by_onednn(a, b):
        total.baddbmm_(a, b, alpha=alpha, beta=beta)
        return
    if beta != 1.0:
        total.mul_(beta) if beta else total.zero_()
    for target, left, right in zip(total, a, b, strict=True):
        target.add_(onednn_product(left, right), alpha=alpha)


def onednn_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for matrices in float32, without gradients."""
    # For a matrix that is part of a much wider one there is no fast kernel.
    right = b if b.is_contiguous() or b.mT.is_contiguous() else b.contiguous()
    product: Tensor = LINEAR(a, right.mT, None, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return onednn_product(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,), (a, b), (needs_a, needs_b) = grads, ctx.saved_tensors, ctx.needs_input_grad
        return matmul(grad, b.mT) if needs_a else None, matmul(a.mT, grad) if needs_b else None


def by_onednn(*factors: Tensor) -> bool:
    """True where large products of such tensors are left to oneDNN, which wants them dense."""
    # Nothing here looks at a shape: a compiler would tie its program to it.
    if tracing() or forward_ad._current_level >= 0 or not onednn_is_faster() or not torch._C._get_mkldnn_enabled():
        return False
    plain = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in factors)
    # Those of ``torch.autograd.grad(..., is_grads_batched=True)``.
    batched = any(torch._C._functorch.is_legacy_batchedtensor(each) for each in factors)
    return plain and not batched and not autocasting(factors[0].device)


def _stack_by_onednn(a: Tensor, b: Tensor) -> bool:
    on_tape = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return not on_tape and by_onednn(a, b) and _is_large(a.shape[1], b, _LEAST_STACKED)


def _is_large(rows: int, b: Tensor, least: int) -> bool:
    return rows * b.shape[-2] * b.shape[-1] >= least


@lru_cache(maxsize=1)
def onednn_is_faster() -> bool:
    """True where oneDNN was found to multiply faster than MKL: with AVX-512, on AMD's processors from Zen 5 on."""
    if LINEAR is None or not torch.backends.mkldnn.is_available() or not torch.backends.mkl.is_available():
        return False
    return str(torch.backends.cpu.get_cpu_capability()) == "AVX512" and _amd_family() >= _LEAST_FAMILY


def _amd_family() -> int:
    """The family of an AMD processor, or 0 for others."""
    found = None
    with contextlib.suppress(OSError):
        facts = Path("/proc/cpuinfo").read_text()
        found = re.search(r"vendor_id\s*:\s*AuthenticAMD\ncpu family\s*:\s*(\d+)", facts)
    return int(found[1]) if found else 0
