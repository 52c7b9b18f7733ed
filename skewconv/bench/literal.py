"""Algorithm 1 with its authors' choices, written from the paper: what the library is measured against."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.nn import SOC2d
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
        self.filter = nn.Parameter(torch.randn(m, m, h, w))
        self.bias = nn.Parameter(torch.zeros(layer.out_channels))
        # Left and right vectors of R, S, T, U, in the shapes in which they broadcast against the filter.
        shapes = [((m, 1, h, 1), (1, m, 1, w)), ((m, 1, 1, w), (1, m, h, 1)), ((m, 1, 1, 1), (1, m, h, w))]
        shapes.append(((m, 1, h, w), (1, m, 1, 1)))
        for i, (left, right) in enumerate(shapes):
            self.register_buffer(f"u{i}", F.normalize(torch.randn(left).flatten(), dim=0).view(left))
            self.register_buffer(f"v{i}", F.normalize(torch.randn(right).flatten(), dim=0).view(right))

    def _normalized(self) -> Tensor:
        skew = self.filter - self.filter.transpose(0, 1).flip(2, 3)
        norms = []
        for i in range(4):
            u, v = getattr(self, f"u{i}"), getattr(self, f"v{i}")
            with torch.no_grad():
                if self.training:
                    v.copy_(_unit((skew * u).sum(_ones(v), keepdim=True)))
                    u.copy_(_unit((skew * v).sum(_ones(u), keepdim=True)))
            norms.append((skew * u * v).sum())
        return self.factor * skew / torch.stack(norms).min()

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = F.pixel_unshuffle(x, self.stride)
        channels = self.filter.shape[0]
        if x.shape[1] < channels:
            x = F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))
        weight = self._normalized()
        reach = weight.shape[2] // 2
        y, term = x, x
        for j in range(1, (self.train_degree if self.training else self.eval_degree) + 1):
            if self.circular and reach:
                term = F.conv2d(F.pad(term, (reach,) * 4, mode="circular"), weight) / j
            else:
                term = F.conv2d(term, weight, padding=reach) / j
            y = y + term
        return y[:, : self.kept] + self.bias.view(1, -1, 1, 1)


def _ones(like: Tensor) -> tuple[int, ...]:
    """The axes along which a vector has length one."""
    return tuple(i for i, n in enumerate(like.shape) if n == 1)


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def literal(model: nn.Module, train_degree: int = 5, eval_degree: int = 12) -> nn.Module:
    """The model with every SOC2d replaced, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, SOC2d):
            model = replace_module(model, name, LiteralSOC(module, train_degree, eval_degree))
    return model
