"""Layers written with PyTorch alone, one for each frozen layer that no module of ``torch.nn`` can stand for.

Nothing here knows the rest of this library: an exported model is made of these classes and of ``torch.nn``, and their
text is copied as it stands into the Python file of such a model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Normalize(nn.Module):
    """(x - mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Downsample(nn.Module):
    """Blocks of pixels (a, b) become channels, in the order of ``nn.PixelUnshuffle``, which takes squares only."""

    def __init__(self, stride: tuple[int, int]) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        c, h, w = x.shape[1:]
        a, b = self.stride
        blocks = x.reshape(-1, c, h // a, a, w // b, b)
        return blocks.permute(0, 1, 3, 5, 2, 4).reshape(-1, c * a * b, h // a, w // b)


class MaxMin(nn.Module):
    """The maxima of the two halves of the channels, then their minima."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)


class GroupSort(nn.Module):
    """Each group of consecutive channels sorted, smallest first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.size)).sort(2).values.flatten(1, 2)


class Householder(nn.Module):
    """The plane of each pair of channels (one of each half) folded along lines; sine and cosine are (folds, c / 2)."""

    sine: Tensor
    cosine: Tensor

    def __init__(self, sine: Tensor, cosine: Tensor) -> None:
        super().__init__()
        self.register_buffer("sine", sine)
        self.register_buffer("cosine", cosine)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        shape = (1, -1, *(1,) * (x.dim() - 2))
        for sine, cosine in zip(self.sine, self.cosine, strict=True):
            s, c = sine.view(shape), cosine.view(shape)
            twice = 2 * torch.clamp(a * s - b * c, max=0)
            a, b = a - twice * s, b + twice * c
        return torch.cat([a, b], 1)


class Chain(nn.Module):
    """p(J) x = c_0 x + J (c_1 x + J (c_2 x + ...)) for the convolution J with one filter; zero padding stays exact.

    The filter has as many channels as the larger of input and output: missing ones are zero, surplus ones are cut off.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        coefficients: tuple[float, ...],
        channels: tuple[int, int],
        padding_mode: str = "zeros",
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.coefficients, self.channels = coefficients, channels
        self.padding_mode, self.dilation, self.groups = padding_mode, dilation, groups
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.coefficients[-1] * x
        for power in range(len(self.coefficients) - 2, -1, -1):
            rows = self.channels[1] if power == 0 else len(self.weight)
            product = self.convolve(y, self.weight[:rows, : y.shape[1] // self.groups])
            y = product + self.coefficients[power] * self.fit(x, rows)
        return self.fit(y, self.channels[1]) + self.bias.view(-1, 1, 1)

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """One convolution that keeps the size of the image."""
        high, wide = (d * (k // 2) for d, k in zip(self.dilation, weight.shape[2:], strict=True))
        if self.padding_mode == "circular":
            x, high, wide = F.pad(x, (wide, wide, high, high), mode="circular"), 0, 0
        return F.conv2d(x, weight, padding=(high, wide), dilation=self.dilation, groups=self.groups)

    def fit(self, x: Tensor, channels: int) -> Tensor:
        """The image with this many channels."""
        if x.shape[1] < channels:
            return F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))
        return x[:, :channels]


class Spectral(nn.Module):
    """A circular convolution: a real Fourier transform, one matrix a frequency, and the transform back."""

    real_weight: Tensor
    weight: Tensor
    table: Tensor
    bias: Tensor

    def __init__(self, real_weight: Tensor, weight: Tensor, table: Tensor, bias: Tensor, groups: int = 1) -> None:
        super().__init__()
        self.groups = groups
        self.register_buffer("real_weight", real_weight)  # (real frequencies * groups, inputs, outputs)
        self.register_buffer("weight", weight)  # (pairs of frequencies * groups, 2 inputs, 2 outputs)
        self.register_buffer("table", table)  # (pixels, pixels), orthogonal
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        pixels, alone = len(self.table), len(self.real_weight) // self.groups
        waves = self.table @ x.reshape(-1, x.shape[1], pixels).permute(2, 0, 1).reshape(pixels, -1)
        columns = self.moved(waves[:alone], self.real_weight, 1, x.shape[0])
        if len(self.weight):
            columns = torch.cat([columns, self.moved(waves[alone:], self.weight, 2, x.shape[0])])
        y = (self.table.t() @ columns).reshape(pixels, x.shape[0], -1).permute(1, 2, 0)
        return y.reshape(x.shape[0], -1, *x.shape[2:]) + self.bias.view(-1, 1, 1)

    def moved(self, waves: Tensor, weight: Tensor, parts: int, batch: int) -> Tensor:
        """One product a frequency, of real parts alone, or of real and imaginary parts."""
        inputs, outputs = weight.shape[1] // parts, weight.shape[2] // parts
        split = waves.reshape(-1, parts, batch, self.groups, inputs)
        rows = split.permute(0, 3, 2, 1, 4).reshape(len(weight), -1, parts * inputs)
        products = (rows @ weight).reshape(-1, self.groups, batch, parts, outputs)
        return products.permute(0, 3, 2, 1, 4).reshape(waves.shape[0], -1)


class ResidualStep(nn.Module):
    """x - V (s relu(W x)) with two convolutions, channels filled up with zeros before and cut off after."""

    step: Tensor

    def __init__(self, there: nn.Conv2d, back: nn.Conv2d, step: Tensor, outputs: int) -> None:
        super().__init__()
        self.there, self.back, self.outputs = there, back, outputs
        self.register_buffer("step", step)  # (hidden, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, 0, 0, self.there.in_channels - x.shape[1]))
        return (x - self.back(self.step * torch.relu(self.there(x))))[:, : self.outputs]


class Radius(nn.Module):
    """Within which l2 distance of an image no point has another class: (images, logits) -> (n,).

    min_i (f_t - f_i - subtracted) / bound_ti for the predicted class t: ``subtracted`` covers what the logits may be
    off by at the image and at the point it moves to, ``bound_ti`` the Lipschitz constant of f_t - f_i. It is 0 where
    nothing is proven, and for images outside of [0, 1].
    """

    pair_bounds: Tensor
    subtracted: Tensor

    def __init__(self, pair_bounds: Tensor, subtracted: Tensor) -> None:
        super().__init__()
        self.register_buffer("pair_bounds", pair_bounds)  # (classes, classes)
        self.register_buffer("subtracted", subtracted)  # ()

    def forward(self, images: Tensor, logits: Tensor) -> Tensor:
        predicted = logits.argmax(1)
        itself = F.one_hot(predicted, logits.shape[1]).bool()
        margins = logits.gather(1, predicted[:, None]) - logits - self.subtracted
        radius = (margins / self.pair_bounds[predicted]).masked_fill(itself, float("inf")).amin(1)
        pixels = images.flatten(1)
        inside = (pixels.amin(1) >= 0) & (pixels.amax(1) <= 1)
        # A logit that is infinite overflowed.
        finite = (logits - logits == 0).all(1)
        return torch.where(inside & finite & (radius > 0), radius, 0.0)


class Network(nn.Module):
    """Images in [0, 1] of one size to (logits, radius), or to logits alone."""

    def __init__(self, layers: nn.Module, radius: nn.Module | None, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.radius, self.input_shape = layers, radius, input_shape

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if tuple(images.shape[1:]) != self.input_shape:
            raise ValueError(f"images must have shape (n, {self.input_shape}), got {tuple(images.shape)}")
        logits = self.layers(images)
        return logits if self.radius is None else (logits, self.radius(images, logits))
