"""Filters with skew-symmetric Jacobians (Theorems 1, 2, 6 and 7), and the convolution L * x: stride one, size kept."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.checks import IntOrTuple, check_filter, check_padding_mode, check_square, per_axis
from skewconv.choices import PaddingMode
from skewconv.errors import NotSkewError

# Subtracting a filter from its transpose is exact, so a filter made by skew_filter is skew to the last bit; the
# allowance is for filters that come from elsewhere, and for the finite differences of gradcheck.
_SKEW_TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-2}
_SKEW_TOLERANCE_DEFAULT = 1e-5


def transpose_filter(weight: Tensor, groups: int = 1) -> Tensor:
    """Swap the channels, flip every spatial axis, conjugate: the filter whose Jacobian is J^H (Theorems 1 and 6).

    >>> import torch
    >>> transpose_filter(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[3., 2., 1.]]])

    (c_out, c_in / groups, *kernel) -> (c_in, c_out / groups, *kernel), real or complex, one to three spatial axes; each
    group is transposed by itself.
    """
    check_filter(weight, groups=groups)
    return transposed(weight, groups)


def transposed(weight: Tensor, groups: int = 1) -> Tensor:
    """:func:`transpose_filter` without checks."""
    rows, columns, *kernel = weight.shape[0] // groups, *weight.shape[1:]
    blocks = weight.reshape(groups, rows, columns, *kernel).transpose(1, 2).reshape(-1, rows, *kernel)
    return blocks.flip(tuple(range(2, weight.dim()))).conj().resolve_conj()


def odd_filter(weight: Tensor) -> Tensor:
    """Zero-pad each even kernel size to odd, in front, as ``padding="same"`` does (Section 4 of the paper)."""
    pad: list[int] = []
    for size in reversed(weight.shape[2:]):
        pad += [1 - size % 2, 0]
    return F.pad(weight, pad) if any(pad) else weight


def full_filter(weight: Tensor, groups: int, dilation: tuple[int, ...]) -> Tensor:
    """The filter (c_out, c_in, *kernel) of the same convolution without groups and dilation, filled up with zeros."""
    taps = odd_filter(weight)
    kernel, columns = taps.shape[2:], taps.shape[1]
    wide = taps.new_zeros(*taps.shape[:2], *(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)))
    places = (slice(None), slice(None), *(slice(None, None, d) for d in dilation))
    wide[places] = taps
    around = [(g * columns, (groups - 1 - g) * columns) for g in range(groups)]
    spatial = (0, 0) * len(kernel)
    return torch.cat([F.pad(b, (*spatial, *pad)) for b, pad in zip(wide.chunk(groups), around, strict=True)])


def skew_filter(weight: Tensor, groups: int = 1) -> Tensor:
    """L = M - transpose(M): every filter with a skew-symmetric (skew-Hermitian) Jacobian is of this form (Theorem 2).

    >>> import torch
    >>> skew_filter(torch.tensor([[[1.0, 2.0, 4.0]]]))
    tensor([[[-3.,  0.,  3.]]])

    M is (m, m / groups, *kernel), of which even kernel sizes are zero-padded to odd first; L is skew to the last bit.
    """
    check_square(weight, groups=groups)
    odd = odd_filter(weight)
    return odd - transposed(odd, groups)


def split_filter(skew: Tensor, groups: int = 1) -> Tensor:
    """Theorem 2 read backwards: an M with skew_filter(M) == skew, to the last bit.

    M is the free half of the filter, which has the same shape: the taps after the centre, the part of the centre tap
    below its diagonal, and half of that diagonal (which is zero for real filters).

    >>> import torch
    >>> split_filter(torch.tensor([[[-3.0, 0.0, 3.0]]]))
    tensor([[[0., 0., 3.]]])
    """
    check_skew(skew, groups=groups)
    channels = skew.shape[1]
    taps = skew.reshape(groups, channels, channels, -1)
    centre = taps.shape[-1] // 2
    free = torch.zeros_like(taps)
    free[..., centre + 1 :] = taps[..., centre + 1 :]
    middle = taps[..., centre]
    free[..., centre] = middle.tril(-1) + torch.diag_embed(middle.diagonal(dim1=-2, dim2=-1) / 2)
    return free.reshape(skew.shape)


def skew_defect(weight: Tensor, groups: int = 1) -> float:
    """max |L + transpose(L)| / max |L|: zero for a skew filter."""
    largest = float(weight.detach().abs().max())
    if largest == 0.0:
        return 0.0
    return float((weight.detach() + transposed(weight.detach(), groups)).abs().max()) / largest


def check_skew(weight: Tensor, name: str = "skew", *, groups: int = 1) -> None:
    """Refuse a filter that is not skew to 1e-5 of its largest entry (1e-3 in float16, 1e-2 in bfloat16)."""
    check_square(weight, name, groups=groups)
    if any(size % 2 == 0 for size in weight.shape[2:]):
        raise NotSkewError(
            f"{name} has kernel sizes {tuple(weight.shape[2:])}; a skew filter has odd sizes: "
            "make it with skew_filter(M)"
        )
    if torch.compiler.is_compiling():
        return
    defect, allowed = skew_defect(weight, groups), _SKEW_TOLERANCE.get(weight.dtype, _SKEW_TOLERANCE_DEFAULT)
    if defect > allowed:
        raise NotSkewError(
            f"{name} is not skew: max |L + transpose(L)| is {defect:.2g} of its largest entry, allowed {allowed:.0g}; "
            "make it with skew_filter(M)"
        )


_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Geometry:
    """How a filter meets an image: kernel (odd), dilation, groups, and what lies past the border."""

    kernel: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: PaddingMode

    @staticmethod
    def of(kernel: tuple[int, ...], padding_mode: PaddingMode, dilation: IntOrTuple, groups: int) -> "Geometry":
        """Check the arguments of a convolution once; even kernel sizes become the next odd ones."""
        check_padding_mode(padding_mode)
        odd = tuple(k + 1 - k % 2 for k in kernel)
        return Geometry(odd, per_axis(dilation, len(kernel), "dilation"), groups, padding_mode)

    @property
    def axes(self) -> int:
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        return tuple(d * (k // 2) for d, k in zip(self.dilation, self.kernel, strict=True))

    def on_image(self, size: tuple[int, ...]) -> "Geometry":
        """The geometry without the taps that leave a zero-padded image of this size from every pixel of it."""
        if self.padding_mode == "circular":
            return self
        axes = zip(self.kernel, self.dilation, size, strict=True)
        return replace(self, kernel=tuple(min(k, 2 * ((n - 1) // d) + 1) for k, d, n in axes))

    def within_reach(self, weight: Tensor) -> Tensor:
        """The taps in the middle of a filter: those of this kernel, where others leave the image from every pixel."""
        if tuple(weight.shape[2:]) == self.kernel:
            return weight
        for axis, (k, kept) in enumerate(zip(weight.shape[2:], self.kernel, strict=True), 2):
            weight = weight.narrow(axis, (k - kept) // 2, kept)
        return weight.contiguous()

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """x with a circular border attached, and the zero padding still to be done by the convolution."""
        if self.padding_mode == "zeros" or not any(self.reach):
            return x, self.reach
        if all(r <= n for r, n in zip(self.reach, x.shape[2:], strict=True)):
            border = [r for reach in reversed(self.reach) for r in (reach, reach)]
            return F.pad(x, border, mode="circular"), (0,) * self.axes
        # PyTorch's own border goes around the image once.
        for axis, (r, n) in enumerate(zip(self.reach, x.shape[2:], strict=True), 2):
            x = x.index_select(axis, torch.arange(-r, n + r, device=x.device) % n)
        return x, (0,) * self.axes

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """(batch, c_in, *size), (c_out, c_in / groups, *kernel) -> (batch, c_out, *size)."""
        padded, zeros = self._padded(x)
        return _CONV[self.axes](padded, weight, padding=zeros, dilation=self.dilation, groups=self.groups)

    def weight_grad(self, x: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
        """The gradient of <grad, convolve(x, weight)> in the weight; only the shape of the weight is read."""
        padded, zeros = self._padded(x)
        ones, none = (1,) * self.axes, (0,) * self.axes
        arguments = (None, ones, zeros, self.dilation, False, none, self.groups, (False, True, False))
        return torch.ops.aten.convolution_backward(grad, padded, weight, *arguments)[1]


def convolve(
    x: Tensor, weight: Tensor, *, padding_mode: PaddingMode = "zeros", dilation: IntOrTuple = 1, groups: int = 1
) -> Tensor:
    """y[i] = sum_t weight[t] x[i + t], with t running over the taps around the centre; the size is kept.

    (batch, c_in, *size), (c_out, c_in / groups, *kernel) -> (batch, c_out, *size). Even kernels act as with
    ``padding="same"``, and a circular one wider than the image wraps as often as it must.
    """
    geometry = Geometry.of(tuple(weight.shape[2:]), padding_mode, dilation, groups)
    return geometry.convolve(x, odd_filter(weight))


def residual_step(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, padding_mode: PaddingMode = "zeros"
) -> Tensor:
    """x - 2 W S relu(W^T x + b) on images (n, c, h, w), which keep their shape.

    The weight is the filter of W^T, (hidden, c, k, k), the scale the diagonal of S, (hidden,) or () for a multiple of
    the identity, and the bias b is (hidden,).
    """
    hidden = convolve(x, weight, padding_mode=padding_mode)
    if bias is not None:
        hidden = hidden + bias.view(-1, 1, 1)
    step = (2 * scale).to(hidden.dtype)
    moved = torch.relu(hidden) * (step.view(-1, 1, 1) if step.dim() else step)
    return x - convolve(moved, adjoint_filter(weight), padding_mode=padding_mode)


def adjoint_filter(weight: Tensor) -> Tensor:
    """The filter of the adjoint convolution, of odd sizes: (hidden, c, k, k) -> (c, hidden, k', k')."""
    return transposed(odd_filter(weight))
