"""What certificates assume of a machine's arithmetic, and a test of it on the machine at hand.

Every proof of a rounding error here rests on these sentences, and on no others:

- float64 numbers are those of IEEE 754, denormals included (nothing is flushed to zero);
- a matrix product or convolution in float64 computes each output as one sum of products, in any order, with or without
  fused multiply-add: no Strassen, no Winograd, no transforms, no TF32, no float64 emulated by shorter numbers;
- a Cholesky factorization in float64, of one matrix or of a stack, on the threads in use, ends early where a pivot is
  not positive, and otherwise has the backward error of sums of products;
- maxima, sorting, copies and powers of two round nothing.

No proof relies on LU, QR, singular or eigenvalue decompositions: what these find is verified by products.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from skewconv.errors import SkewconvError
from skewconv.ops.torch_modes import without_autocast
from skewconv.rigor import gamma

_SIZE, _CHANNELS, _BITS = 48, 12, 26
# Of stacks: libraries divide the work otherwise from some size on.
_FACTOR_SIZES = (48, 160, 384)


class UnsoundArithmeticError(SkewconvError):
    """A machine whose float64 arithmetic is not what certificates assume."""


def check_arithmetic(device: torch.device | str = "cpu") -> None:
    """Refuse a device that breaks an assumption on a product, a convolution, a Cholesky factor or a denormal.

    A sum of n products errs by at most gamma_n sum |a b|, output by output. Where rows and columns differ by factors
    of 2^300, or terms of a sum cancel in scale, algorithms other than such sums miss that by far.

    Raises:
        UnsoundArithmeticError: what was found, and what to switch off.
    """
    if torch.is_autocast_enabled(torch.device(device).type):
        raise UnsoundArithmeticError("autocast is on, which lowers the precision of products; certify outside of it")
    reason = _found(str(torch.device(device)), _flushes(device), torch.get_num_threads())
    if reason:
        raise UnsoundArithmeticError(
            f"float64 on {device} is not what certificates assume: {reason}; switch that off, or certify on the CPU"
        )


def _flushes(device: torch.device | str) -> bool:
    """Whether denormals become zero; asked each time, since any thread may switch it."""
    tiny = torch.full((2,), 2.0**-1060, dtype=torch.float64, device=device)
    return not bool((tiny * 0.5 > 0).all())


@lru_cache(maxsize=16)
def _found(device: str, flushes: bool, threads: int) -> str:
    if flushes:
        return "denormals are flushed to zero (torch.set_flush_denormal)"
    if _worst_product(device) > 1:
        return "matrix products err by more than a sum of products can (TF32, Strassen or emulation)"
    if _worst_convolution(device) > 1:
        return "convolutions err by more than a sum of products can (Winograd or transforms)"
    # Factors are made on the CPU, whatever device the network is on.
    if not all(_factors_rightly(n, dtype) for n in _FACTOR_SIZES for dtype in (torch.float64, torch.complex128)):
        return f"Cholesky factors of stacks on {threads} threads are wrong (torch.set_num_threads(1) may help)"
    return ""


def multiplies_in_float32(device: torch.device | str) -> bool:
    """Whether a float32 product on this device is a sum of float32 products, and not one of TF32 or bfloat16.

    Users may lower that precision (torch.set_float32_matmul_precision), so it is measured each time.
    """
    generator, size = np.random.default_rng(2), 128
    left, right = (generator.integers(-(2**20), 2**20, (size, size)).astype(np.float32) for _ in range(2))
    with without_autocast(torch.device(device)):
        found = (torch.from_numpy(left).to(device) @ torch.from_numpy(right).to(device)).cpu().double().numpy()
    a, b = left.astype(np.float64), right.astype(np.float64)  # whose sums of products are below 2^53
    return bool((np.abs(found - a @ b) <= 2.0**-24 * (size + 2) * 1.01 * (np.abs(a) @ np.abs(b))).all())


def _integers(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers, too long for sums of their products in float64, as Python's integers."""
    return generator.integers(-(2**_BITS), 2**_BITS, shape).astype(object)


def _powers(generator: np.random.Generator, count: int) -> np.ndarray:
    return 2.0 ** generator.integers(-150, 150, count).astype(float)


def _worst_product(device: str) -> float:
    """max |computed - exact| / (gamma_n |A| |B|) for A = D1 M D, B = D^-1 N D2 with powers of two D."""
    generator = np.random.default_rng(0)
    left, right = _integers(generator, _SIZE, _SIZE), _integers(generator, _SIZE, _SIZE)
    above, inner, beside = (_powers(generator, _SIZE) for _ in range(3))
    a = torch.from_numpy(above[:, None] * left.astype(float) * inner).to(device)
    b = torch.from_numpy(right.astype(float) / inner[:, None] * beside).to(device)
    computed = (a @ b).cpu().numpy() / above[:, None] / beside
    return _worst_ratio(computed, left @ right, np.abs(left) @ np.abs(right), _SIZE)


def _worst_convolution(device: str) -> float:
    """The same for a 3 x 3 convolution of images whose rows fall off by 2^15 each, channels scaled as above."""
    generator = np.random.default_rng(1)
    x, w = _integers(generator, 1, _CHANNELS, 10, 10), _integers(generator, _CHANNELS, _CHANNELS, 3, 3)
    x = x * np.array([2 ** (15 * row) for row in range(10)], dtype=object)[:, None]
    inner = _powers(generator, _CHANNELS)[:, None, None]
    images, filters = torch.from_numpy(x.astype(float) * inner), torch.from_numpy(w.astype(float) / inner)
    computed = F.conv2d(images.to(device), filters.to(device)).cpu().numpy()
    return _worst_ratio(computed, _convolution(x, w), _convolution(np.abs(x), np.abs(w)), 9 * _CHANNELS)


def _convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[0]  # (c, h, w, 3, 3)
    columns = windows.transpose(1, 2, 0, 3, 4).reshape(64, -1)
    return (columns @ w.reshape(len(w), -1).T).T.reshape(1, len(w), 8, 8)


def _factors_rightly(n: int, dtype: torch.dtype) -> bool:
    """Whether Cholesky factors L L^H, and refuses the same with a last pivot of -1, in one stack of whole numbers."""
    generator = torch.Generator().manual_seed(n)
    signs = torch.randint(-1, 2, (2, n, n), generator=generator).to(dtype)
    lower = (signs[0] + (1j * signs[1] if dtype.is_complex else 0)).tril(-1)
    lower.diagonal().fill_(32.0)
    exact = lower @ lower.mH
    spoiled = exact.clone()
    spoiled[-1, -1] -= 32.0**2 + 1
    factors, info = torch.linalg.cholesky_ex(torch.stack([exact, spoiled, exact]))
    scale = exact.diagonal().real.sqrt()
    errors = (factors[::2] @ factors[::2].mH - exact).abs() / (scale[:, None] * scale)
    return info.tolist() == [0, n, 0] and float(errors.max()) <= 2 * gamma(2 * (n + 4), is_complex=dtype.is_complex)


def _worst_ratio(computed: np.ndarray, exact: np.ndarray, sizes: np.ndarray, terms: int) -> float:
    if not np.isfinite(computed).all():
        return math.inf
    allowed = Fraction(gamma(terms + 2))
    rows = zip(computed.flat, exact.flat, sizes.flat, strict=True)
    return float(max(abs(Fraction(float(c)) - e) / (allowed * s) for c, e, s in rows))
