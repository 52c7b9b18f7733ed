"""The pass of one go, and its derivatives, are those of the definition."""

import pytest
import torch
from torch import Tensor

from skewconv.ops.permutations import sorted_halves


def by_definition(x: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim)


@pytest.mark.parametrize("dim", [1, -1, -3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients_are_those_of_the_definition(dim, layout, dtype):
    # No two are equal: there the definition has another derivative.
    first = torch.randn(3, 4, 5, 6).to(dtype).chunk(2, dim)[0]
    x = torch.cat([first, first + 2 * torch.randint(2, first.shape) - 1], dim).to(memory_format=layout).requires_grad_()
    # Of very different sizes, so that nothing is rounded that should only be moved.
    grad = (torch.randn(3, 4, 5, 6) * 10.0 ** torch.randint(-4, 4, (3, 4, 5, 6))).to(dtype)
    found, wanted = sorted_halves(x, dim), by_definition(x, dim)
    assert torch.equal(found, wanted)  # values are only moved
    assert found.is_contiguous(memory_format=layout)
    assert torch.equal(*(torch.autograd.grad(y, x, grad)[0] for y in (found, wanted)))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_derivatives_of_every_kind_are_exact():
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sorted_halves(x, 1), x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: sorted_halves(x, 1), x)


def test_a_tie_keeps_the_norm_of_a_gradient():
    x, grad = torch.zeros(2, 4, requires_grad=True), torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    (found,) = torch.autograd.grad(sorted_halves(x, 1), x, grad)
    assert torch.equal(found.norm(dim=1), grad.norm(dim=1))
    assert torch.equal(found.sort(1).values, grad)
