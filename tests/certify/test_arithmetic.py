"""Certificates are refused on a machine whose arithmetic is not what their proofs assume."""

import pytest
import torch
import torch.nn.functional as F

from skewconv.certify import Certifier, certifier
from skewconv.certify.certifier import UnsoundArithmeticError, check_arithmetic
from skewconv.models import LipConvnet


@pytest.fixture(autouse=True)
def _asked_anew():
    certifier._found.cache_clear()
    yield
    certifier._found.cache_clear()


def test_this_machine_computes_sums_of_products():
    check_arithmetic("cpu")
    assert 0 < certifier._worst_product("cpu") <= 1
    assert 0 < certifier._worst_convolution("cpu") <= 1


def test_flushed_denormals_are_noticed():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(UnsoundArithmeticError, match="denormals"):
            Certifier(LipConvnet(5, in_channels=1, input_size=8, width=4), (1, 8, 8))
    finally:
        torch.set_flush_denormal(False)


def strassen(a, b):
    """One level: seven products of halves."""
    h = len(a) // 2
    (a11, a12), (a21, a22) = (m.split(h, 1) for m in a.split(h))
    (b11, b12), (b21, b22) = (m.split(h, 1) for m in b.split(h))
    m1, m2, m3 = (a11 + a22) @ (b11 + b22), (a21 + a22) @ b11, a11 @ (b12 - b22)
    m4, m5, m6, m7 = a22 @ (b21 - b11), (a11 + a12) @ b22, (a21 - a11) @ (b11 + b12), (a12 - a22) @ (b21 + b22)
    top, bottom = torch.cat([m1 + m4 - m5 + m7, m3 + m5], 1), torch.cat([m2 + m4, m1 - m2 + m3 + m6], 1)
    return torch.cat([top, bottom])


def emulated(a, b):
    """Each matrix cut to whole multiples of a share of its largest entry, as emulation with few slices does."""
    cut = [(m / m.abs().max() * 2.0**52).round() * m.abs().max() / 2.0**52 for m in (a, b)]
    return cut[0] @ cut[1]


@pytest.mark.parametrize("product", [strassen, emulated, lambda a, b: (a.float() @ b.float()).double()])
def test_other_products_are_noticed(product, monkeypatch):
    real = torch.Tensor.__matmul__
    inside = []

    def replaced(a, b):
        if inside or a.dtype != torch.float64 or a.dim() != 2:
            return real(a, b)
        inside.append(1)
        try:
            return product(a, b)
        finally:
            inside.pop()

    monkeypatch.setattr(torch.Tensor, "__matmul__", replaced)
    with pytest.raises(UnsoundArithmeticError, match="matrix products"):
        check_arithmetic("cpu")


def test_convolutions_by_transforms_are_noticed(monkeypatch):
    def by_fourier(x, w):
        size = x.shape[-1] + w.shape[-1]
        waves = [torch.fft.fft2(part, (size, size)) for part in (x, w)]
        spectrum = torch.einsum("bchw,ochw->bohw", waves[0], waves[1].conj())
        side = x.shape[-1] - w.shape[-1] + 1
        return torch.fft.ifft2(spectrum).real[..., :side, :side].contiguous()

    monkeypatch.setattr(F, "conv2d", by_fourier)
    with pytest.raises(UnsoundArithmeticError, match="convolutions"):
        check_arithmetic("cpu")


def test_autocast_is_noticed():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UnsoundArithmeticError, match="autocast"):
        check_arithmetic("cpu")


@pytest.mark.parametrize("fault", ["a factor", "a refusal"])
def test_wrong_cholesky_factors_of_stacks_are_noticed(fault, monkeypatch):
    real = torch.linalg.cholesky_ex

    def replaced(stack):
        factors, info = real(stack)
        if stack.shape[-1] >= 160 and len(stack) > 1:
            factors[-1] *= 1.0 + 1e-6 * (fault == "a factor")
            info *= fault == "a factor"
        return factors, info

    monkeypatch.setattr(torch.linalg, "cholesky_ex", replaced)
    with pytest.raises(UnsoundArithmeticError, match="Cholesky"):
        check_arithmetic("cpu")
