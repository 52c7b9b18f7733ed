"""What engines take and keep in memory: any order of storage, and as little as was asked when recomputing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from skewconv.ops.series import SERIES
from tests.ops.engine_cases import FORMS, Case, oracle


@pytest.mark.parametrize("engine", FORMS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_any_memory_order_of_image_filter_and_gradient_will_do(engine: str, memory_format: torch.memory_format) -> None:
    case = Case((4, 3), (3, 3), "circular", inputs=2)
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    expected = oracle(case, x, raw)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, raw), direction)
    found = case.apply(engine, x.contiguous(memory_format=memory_format), raw.contiguous(memory_format=memory_format))
    grads = torch.autograd.grad(found, (x, raw), direction.transpose(2, 3).contiguous().transpose(2, 3))
    for left, right in zip((found, *grads), (expected, *wanted), strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


def given_up(y: Tensor) -> list[Tensor]:
    """What the nodes of a graph hold besides saved tensors, to be given up on the way back."""
    found, pending = [], [y.grad_fn]
    while pending:
        node = pending.pop()
        found += getattr(node, "disposable_terms", None) or []
        pending += [parent for parent, _ in node.next_functions if parent is not None]
    return found


@pytest.mark.parametrize("engine", FORMS)
def test_recomputing_keeps_as_little_at_any_degree(engine: str) -> None:
    def kept(degree: int, recompute: bool) -> int:
        case = Case((3, 3), (3, 3), "circular", degree=degree, recompute=recompute)
        stored: dict[int, int] = {}
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: stored.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t
        )
        with hooks:
            y = case.apply(engine, case.image().requires_grad_(), case.filter().requires_grad_())
        return sum(stored.values()) + sum(t.nbytes for t in given_up(y))

    assert kept(16, recompute=True) == kept(4, recompute=True)
    assert kept(16, recompute=False) > kept(4, recompute=False)


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 9])
def test_recomputed_gradients_are_the_stored_ones_also_the_second_time(degree: int, series: str) -> None:
    case = Case((6, 6), (3, 3), degree=degree, series=series)
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    expected = torch.autograd.grad(case.apply("series", x, raw).square().sum(), (x, raw))
    loss = replace(case, recompute=True).apply("series", x, raw).square().sum()
    for _ in range(2):
        found = torch.autograd.grad(loss, (x, raw), retain_graph=True)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
