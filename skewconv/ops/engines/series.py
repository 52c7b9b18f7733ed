"""The series engine: products with J are convolutions, or one product with a filter too large to be copied.

It serves every request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skewconv.checks import PaddingMode
from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.adjoint import Pair, joined, run, tracing
from skewconv.ops.engines.channels import Cut, add_, fit, narrow
from skewconv.ops.engines.columns import Columns
from skewconv.ops.engines.steps import steps_of
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import Recurrence

# PyTorch leaves a single image of so few elements to a simpler convolution, which takes the filter as it is.
_SMALL_IMAGE = 20480
# Filters of more elements (in a group) than the first number are taken as they are with pixels up to the second. Beyond
# 32 MiB the system hands out the memory of every copy page by page; and oneDNN passes over borders of zeros.
COLUMNS = {"zeros": ((2**23, 512), (2**21, 16)), "circular": ((2**23, 512), (2**21, 64))}


@dataclass(frozen=True)
class Convolutions:
    """States are images (batch, channels, *size), the operator is the filter (m, m / groups, *kernel)."""

    geometry: Geometry
    cut: Cut
    memory_format: torch.memory_format
    stacks: bool = False
    dim: int = 1

    def adjoint(self) -> "Convolutions":
        """The action on the adjoint's channels."""
        return replace(self, cut=self.cut.adjoint())

    def arrange(self, state: Tensor) -> Tensor:
        """The state in the memory format chosen."""
        return state.contiguous(memory_format=self.memory_format)

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """One convolution with the channels that matter."""
        groups = self.cut.groups
        columns = operator[:, : state.shape[1] // groups]
        image = self.geometry.convolve(state, narrow(columns, 0, groups, rows))
        if back is None or factor == 0.0:
            return image
        if torch.is_grad_enabled():
            return image + factor * fit(back, 1, groups, rows)
        add_(image, back, factor, 1, groups)
        return image

    def operator_grad(self, pairs: Sequence[Pair], operator: Tensor, total: Tensor | None) -> Tensor:
        """One call for all the steps given that read and write the same channels."""
        groups = self.cut.groups
        for grad, state, sign in joined(pairs, 1, 0):
            columns = state.shape[1] // groups
            shape = narrow(operator[:, :columns], 0, groups, grad.shape[1] // groups)
            step = self.geometry.weight_grad(state, grad, shape)
            if total is None and step.shape == operator.shape:
                total = step if sign > 0 else step.neg_()
                continue
            if total is None:
                total = torch.zeros_like(operator)
            add_(total[:, :columns], step, sign, 0, groups)
        assert total is not None
        return total


def memory_format(channels: int, size: tuple[int, ...], padding_mode: PaddingMode) -> torch.memory_format:
    """Channels last where oneDNN's convolutions are fastest so: on large images, and between 16 and 255 channels.

    With more channels on smaller images the filter outweighs the image, and reordering it costs more than is gained;
    and a circular border is attached faster to images stored channel by channel.
    """
    pixels = torch.Size(size).numel()
    if padding_mode == "circular" or len(size) == 1:
        return torch.contiguous_format
    if len(size) == 3:
        return torch.channels_last_3d if 16 <= channels < 128 and pixels >= 512 else torch.contiguous_format
    last = 16 <= channels < 256 or pixels >= (256 if channels >= 16 else 1024)
    return torch.channels_last if last else torch.contiguous_format


def is_quick(batch: int, size: tuple[int, ...], geometry: Geometry, cut: Cut) -> bool:
    """Whether PyTorch convolves without copying the filter first."""
    border = geometry.reach if geometry.padding_mode == "circular" else (0,) * geometry.axes
    padded = torch.Size(n + 2 * r for n, r in zip(size, border, strict=True)).numel()
    return batch <= 1 and geometry.axes < 3 and cut.groups * cut.channels * padded <= _SMALL_IMAGE


def uses_columns(
    batch: int, size: tuple[int, ...], geometry: Geometry, cut: Cut, dtype: torch.dtype, device: str
) -> bool:
    """Whether the images are copied rather than the filter; processors take products of half precision less well."""
    if device != "cpu" or dtype not in (torch.float32, torch.float64):
        return False
    elements = torch.Size(geometry.kernel).numel() * cut.channels**2
    pixels = batch * torch.Size(size).numel()
    tiers = COLUMNS[geometry.padding_mode]
    most = next((pixels for least, pixels in tiers if elements > least), 0)
    quick = elements <= tiers[0][0] and is_quick(batch, size, geometry, cut)
    return pixels <= most and not quick


def apply(
    x: Tensor, weight: Tensor, polynomial: Polynomial, geometry: Geometry, cut: Cut, *, inverse: bool, recompute: bool
) -> Tensor:
    """p(J) x, or p(-J) x, by convolutions: (batch, groups * inputs, *size) -> (batch, groups * outputs, *size)."""
    steps = steps_of(polynomial, inverse=inverse, recompute=recompute)
    traced, size = tracing(), tuple(x.shape[2:])
    if not traced and uses_columns(len(x), size, geometry, cut, x.dtype, x.device.type):
        return _by_columns(x, weight, steps, geometry, cut, recompute)
    order = torch.contiguous_format if traced else memory_format(cut.channels, size, geometry.padding_mode)
    action = Convolutions(geometry, cut, order, stacks=weight.numel() > x.numel())
    return run(action.arrange(x), weight.contiguous(memory_format=order), steps, action, recompute=recompute)


def _by_columns(x: Tensor, weight: Tensor, steps: Recurrence, geometry: Geometry, cut: Cut, recompute: bool) -> Tensor:
    action = Columns(geometry, Cut(1, cut.channels, cut.inputs, cut.outputs))
    state = x.unflatten(1, (cut.groups, -1)).movedim(0, 2).contiguous()
    filters = weight.flatten(1).unflatten(0, (cut.groups, -1))
    return run(state, filters, steps, action, recompute=recompute).movedim(2, 0).flatten(1, 2)
