"""Generated filters and images, over dimensions, field, kernel shapes, padding, groups, dilation and dtype."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

WIDE = {
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}
# Rounding of a sum of a few dozen products of numbers near one.
ROUNDING = {torch.float32: 2e-5, torch.complex64: 2e-5, torch.float64: 1e-12, torch.complex128: 1e-12}


@dataclass(frozen=True)
class Case:
    """A filter M with everything that says how it meets an image."""

    weight: Tensor
    size: tuple[int, ...]
    padding_mode: str
    dilation: tuple[int, ...]
    groups: int

    @property
    def channels(self) -> int:
        return self.weight.shape[1] * self.groups

    @property
    def options(self) -> dict:
        return {"padding_mode": self.padding_mode, "dilation": self.dilation, "groups": self.groups}

    def image(self, batch: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return torch.randn(batch, self.channels, *self.size, dtype=self.weight.dtype, generator=generator)


@st.composite
def cases(draw, axes=(1, 2, 3), dtypes=tuple(WIDE), kernels=(1, 2, 3, 4, 5), square=True) -> Case:
    dims = draw(st.sampled_from(axes))
    longest = 5 if dims < 3 else 3
    kernel = tuple(draw(st.sampled_from([k for k in kernels if k <= longest])) for _ in range(dims))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(dims))
    padding_mode = draw(st.sampled_from(["zeros", "circular"]))
    size = tuple(draw(st.integers(1, longest)) for _ in range(dims))
    groups = draw(st.sampled_from([1, 1, 2]))
    columns = draw(st.integers(1, 3))
    rows = columns if square else draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from(dtypes))
    weight = torch.randn(groups * rows, columns, *kernel, dtype=dtype, generator=generator)
    return Case(weight, size, padding_mode, dilation, groups)


def check_equal(left: Tensor, right: Tensor, case: Case) -> None:
    """To the last bit, since each entry of a dense Jacobian is one tap, plus zeros.

    Where a kernel wraps around the image, an entry is a sum of taps, in another order in the transpose: up to rounding.
    """
    wraps = any(n <= 2 * d * (k // 2) for n, d, k in zip(case.size, case.dilation, case.weight.shape[2:], strict=True))
    if case.padding_mode == "circular" and wraps:
        torch.testing.assert_close(left, right, atol=ROUNDING[left.dtype], rtol=0)
    else:
        assert torch.equal(left, right)
