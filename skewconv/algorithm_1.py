"""Algorithm 1 of the paper, written literally: what speed and the paper's recipe are measured against.

What the paper leaves open is its authors' choice: M from N(0, 1 / m), L = (M - conv_transpose(M)) / 2, 50 power steps
at the start, one a forward pass in training and 50 more every 200, and a last layer that is a convolution of one tap.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.nn import OrthogonalLinear, SOC2d
from skewconv.nn.module_tools import replace_module


class LiteralSOC(nn.Module):
    """Plain autograd through a Taylor series; four norms by elementwise power iteration on the whole filter.

    Args:
        layer: the SOC2d whose shapes, stride and bias to take over; zero padding or circular.
        train_degree, eval_degree: number of convolutions.
    """

    def __init__(self, layer: SOC2d, train_degree: int = 5, eval_degree: int = 12) -> None:
        super().__init__()
        m, (h, w) = layer.channels, layer.kernel_size
        self.read, self.kept, self.stride = layer.read_channels, layer.kept_channels, layer.stride[0]
        self.circular = layer.padding_mode == "circular"
        self.train_degree, self.eval_degree = train_degree, eval_degree
        self.factor = 0.7 if h * w > 1 else 1.0
        self.filter = nn.Parameter(torch.randn(m, m, h, w) / math.sqrt(m))
        self.bias = nn.Parameter(torch.zeros(layer.out_channels))
        self.passes = 0
        # Left and right vectors of R, S, T, U, in the shapes in which they broadcast against the filter.
        shapes = [((m, 1, h, 1), (1, m, 1, w)), ((m, 1, 1, w), (1, m, h, 1)), ((m, 1, 1, 1), (1, m, h, w))]
        shapes.append(((m, 1, h, w), (1, m, 1, 1)))
        for i, (left, right) in enumerate(shapes):
            self.register_buffer(f"u{i}", F.normalize(torch.randn(left).flatten(), dim=0).view(left))
            self.register_buffer(f"v{i}", F.normalize(torch.randn(right).flatten(), dim=0).view(right))
        with torch.no_grad():
            self._power_steps(self._skew(), 50)

    def _skew(self) -> Tensor:
        return (self.filter - self.filter.transpose(0, 1).flip(2, 3)) / 2

    def _power_steps(self, skew: Tensor, count: int) -> None:
        for i in range(4):
            u, v = getattr(self, f"u{i}"), getattr(self, f"v{i}")
            for _ in range(count):
                v.copy_(_power_step(skew, u, v))
                u.copy_(_power_step(skew, v, u))

    def _normalized(self) -> Tensor:
        skew = self._skew()
        if self.training:
            self.passes += 1
            with torch.no_grad():
                self._power_steps(skew, 50 if self.passes % 200 == 0 else 1)
        vectors = ((getattr(self, f"u{i}"), getattr(self, f"v{i}")) for i in range(4))
        norms = [(skew * u * v).sum() for u, v in vectors]
        return self.factor * skew / torch.stack(norms).min()

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = F.pixel_unshuffle(x, self.stride)
        channels = self.filter.shape[0]
        if x.shape[1] < channels:
            x = F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))
        product = self._product(self._normalized(), x.shape[2:])
        y, term = x, x
        for j in range(1, (self.train_degree if self.training else self.eval_degree) + 1):
            term = product(term) / j
            y = y + term
        return y[:, : self.kept] + self.bias.view(1, -1, 1, 1)

    def _product(self, weight: Tensor, size: torch.Size) -> Callable[[Tensor], Tensor]:
        """The convolution with the filter, for images of this size."""
        border = weight.shape[2] // 2
        if self.circular and border:
            return lambda x: F.conv2d(F.pad(x, (border,) * 4, mode="circular"), weight)
        return lambda x: F.conv2d(x, weight, padding=border)


def _power_step(skew: Tensor, vector: Tensor, other: Tensor) -> Tensor:
    """The sum of the filter times a vector over the axes along which the other has length one, at length one."""
    product = (skew * vector).sum([axis for axis, length in enumerate(other.shape) if length == 1], keepdim=True)
    return product / product.norm()


class LiteralHead(nn.Module):
    """The authors' last layer: a LiteralSOC of one tap on images of one pixel, norm one, the first outputs kept."""

    def __init__(self, features: int, classes: int, train_degree: int, eval_degree: int) -> None:
        super().__init__()
        self.conv = LiteralSOC(SOC2d(features, classes, 1), train_degree, eval_degree)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x[:, :, None, None])
        return y.flatten(1)


def literal(model: nn.Module, train_degree: int = 5, eval_degree: int = 12) -> nn.Module:
    """The model with every SOC2d and OrthogonalLinear replaced, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, SOC2d):
            model = replace_module(model, name, LiteralSOC(module, train_degree, eval_degree))
        elif isinstance(module, OrthogonalLinear):
            head = LiteralHead(module.in_features, module.out_features, train_degree, eval_degree)
            model = replace_module(model, name, head)
    return model
