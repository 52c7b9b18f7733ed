"""A frozen layer as one matrix for each frequency."""

from typing import Any

import torch
from torch import Tensor

from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.protocol.stored import storable
from skewconv.ops.downsample import invertible_downsample, invertible_upsample
from skewconv.ops.fourier import inverse_transform_table, transform_table


@storable()
class FrozenSpectral(FrozenLinearMap):
    """Circular convolutions: a real Fourier transform, one product per frequency, and the transform back.

    Args:
        weight: (frequencies * groups, 2 inputs, 2 outputs): real and imaginary parts side by side.
        forward_table: (2 frequencies, pixels); inverse_table: (pixels, 2 frequencies).
        groups: number of independent channel groups.
        stride: of the downsampling before the map, or, if ``upsamples``, of the upsampling after it.
    """

    weight: Tensor
    forward_table: Tensor
    inverse_table: Tensor

    def __init__(
        self,
        *,
        weight: Tensor,
        forward_table: Tensor,
        inverse_table: Tensor,
        groups: int,
        stride: tuple[int, ...],
        upsamples: bool,
        bias: Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(bias=bias, **settings)
        self.groups, self.stride, self.upsamples = groups, tuple(stride), upsamples
        for name, tensor in (("weight", weight), ("forward_table", forward_table), ("inverse_table", inverse_table)):
            self.register_buffer(name, tensor.detach().clone())

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "groups": self.groups, "stride": self.stride, "upsamples": self.upsamples}

    def linear(self, x: Tensor) -> Tensor:
        if not self.upsamples and max(self.stride) > 1:
            x = invertible_downsample(x, self.stride)
        batch, size = x.shape[0], x.shape[2:]
        pixels = x.flatten(2).permute(2, 0, 1).flatten(1)
        waves = (self.forward_table @ pixels).view(-1, 2, batch, self.groups, x.shape[1] // self.groups)
        rows = waves.permute(0, 3, 2, 1, 4).flatten(0, 1).flatten(2)
        products = torch.bmm(rows, self.weight).view(-1, self.groups, batch, 2, self.weight.shape[2] // 2)
        columns = products.permute(0, 3, 2, 1, 4).flatten(2).flatten(0, 1)
        y = (self.inverse_table @ columns).view(-1, batch, self.groups * products.shape[-1])
        y = y.permute(1, 2, 0).unflatten(2, size)
        return invertible_upsample(y, self.stride) if self.upsamples and max(self.stride) > 1 else y


def frozen_spectral(
    matrices: Tensor,
    size: tuple[int, ...],
    *,
    groups: int,
    stride: tuple[int, ...],
    upsamples: bool,
    gain: tuple[float, float],
    device: torch.device,
    **common: Any,
) -> FrozenSpectral:
    """The layer from its matrices at the frequencies of ``rfftn``: (frequencies * groups, outputs, inputs), complex.

    Args:
        matrices: rounded to what is stored.
        size: of the image that they act on.
        gain: proven of the matrices.
        device: where the layer is to be.
        common: the shapes and the bias.
    """
    dtype = matrices.real.dtype
    forward, inverse = transform_table(size).to(dtype), inverse_transform_table(size).to(dtype)
    # Real and imaginary part of one frequency side by side, so that a frequency's rows are one block.
    order = torch.arange(len(forward)).view(2, -1).T.flatten()
    return FrozenSpectral(
        weight=_as_real_products(matrices).to(device),
        forward_table=forward[order].to(device),
        inverse_table=inverse[:, order].contiguous().to(device),
        groups=groups,
        stride=stride,
        upsamples=upsamples,
        gain=gain,
        **common,
    )


def _as_real_products(matrices: Tensor) -> Tensor:
    """(n, out, in) complex -> (n, 2 in, 2 out) real, to be multiplied from the left by (real, imaginary) parts."""
    re, im = matrices.real.mT, matrices.imag.mT
    return torch.cat([torch.cat([re, im], 2), torch.cat([-im, re], 2)], 1)
