"""A cached value is forgotten with every edit of what it was built from, arithmetic edits included."""

import pytest
import torch
from torch import nn

from skewconv.nn import SOC2d
from skewconv.nn.eval_operator import EvalCache, fingerprint
from skewconv.ops import norm_estimate

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_of_one_content_have_one_fingerprint(dtype: torch.dtype) -> None:
    x = torch.randn(6, 50, dtype=torch.float64).to(dtype)
    assert fingerprint(x.T.contiguous().T) == fingerprint(x) == fingerprint(x.clone())
    if dtype.is_complex:
        assert fingerprint(x.conj()) == fingerprint(x.conj().resolve_conj()) != fingerprint(x)


def test_contents_shapes_and_dtypes_are_told_apart() -> None:
    x = torch.randn(200)
    x[7] = 0.0
    small = x.clone()
    small[7] = -0.0
    others = (x, -x, x.flip(0), small, x.view(2, -1), x.double(), x.bfloat16(), x.to(torch.complex64))
    assert len({fingerprint(t) for t in others}) == 8
    assert fingerprint(torch.empty(0)) == fingerprint(torch.empty(0))


def test_a_cache_holds_the_latest_few_and_forgets_when_the_content_changes() -> None:
    cache: EvalCache[int] = EvalCache(capacity=2)
    layer = nn.Identity()
    x, built = torch.zeros(3), []

    def ask(key: int) -> int:
        return cache.get(layer, [x], key, lambda: built.append(key) or key)

    for key in (1, 2, 2, 1, 3, 2, 1):
        assert ask(key) == key
    assert built == [1, 2, 3, 1]
    x.data[0] = 1.0
    ask(1)
    assert built == [1, 2, 3, 1, 1]
    layer.setting = 2.0
    ask(1)
    layer.eval()
    ask(1)
    assert built == [1, 2, 3, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_bound_that_is_set_later_is_kept(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = SOC2d(4, 4, 3, norm_bound=20.0, dtype=dtype).eval()
    layer(torch.zeros(1, 4, 6, 6, dtype=dtype))
    layer.norm_bound = 1.0
    with torch.no_grad():
        assert norm_estimate(layer.weight, (6, 6)) <= layer.proven_norm_bound()
    for parameter in layer.parameters():
        parameter.requires_grad_(True)
    assert norm_estimate(layer.weight.detach(), (6, 6)) <= layer.proven_norm_bound()
