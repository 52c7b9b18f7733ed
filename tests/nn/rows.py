"""One row a layer and configuration: what the contracts walk. Skew orthogonal convolutions have a longer table."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import nn

from skewconv import nn as snn


class Row(NamedTuple):
    """A layer, the shape of one input, and what it is held to.

    Orthogonal maps have singular values of one; activations a Jacobian that has; residual layers are 1-Lipschitz and
    not linear; what shrinks is linear and at most one; others are only bounded.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    kind: Literal["orthogonal", "activation", "residual", "shrinking", "bounded"]


ROWS = {
    "SOC1d": Row(lambda: snn.SOC1d(3, 4, 3), (3, 6), "orthogonal"),
    "SOC2d": Row(lambda: snn.SOC2d(3, 3, 3), (3, 4, 4), "orthogonal"),
    "SOC2d-tracked": Row(lambda: snn.SOC2d(3, 3, 3, norm="tracked"), (3, 4, 4), "orthogonal"),
    "SOC3d": Row(lambda: snn.SOC3d(2, 2, 3), (2, 3, 2, 2), "orthogonal"),
    "SOC2d-dense": Row(lambda: snn.SOC2d(3, 3, 3, engine="dense"), (3, 4, 4), "orthogonal"),
    "SOC2d-series": Row(lambda: snn.SOC2d(3, 3, 3, engine="series"), (3, 4, 4), "orthogonal"),
    "SOC2d-spectral": Row(
        lambda: snn.SOC2d(3, 3, 3, engine="spectral", padding_mode="circular"), (3, 4, 4), "orthogonal"
    ),
    "SOCTranspose1d": Row(lambda: snn.SOCTranspose1d(4, 2, 3, stride=2), (4, 3), "orthogonal"),
    "SOCTranspose2d": Row(lambda: snn.SOCTranspose2d(4, 1, 3, stride=2), (4, 2, 3), "orthogonal"),
    "SOCTranspose3d": Row(lambda: snn.SOCTranspose3d(8, 1, 3, stride=2), (8, 1, 2, 1), "orthogonal"),
    "BCOP2d": Row(lambda: snn.BCOP2d(3, 3, 3), (3, 4, 4), "orthogonal"),
    "BCOP2d-even": Row(lambda: snn.BCOP2d(4, 4, 2), (4, 4, 4), "orthogonal"),
    "BCOP2d-wider": Row(lambda: snn.BCOP2d(2, 4, 3), (2, 4, 4), "orthogonal"),
    "BCOP2d-narrower": Row(lambda: snn.BCOP2d(4, 2, 3), (4, 4, 4), "orthogonal"),
    "BCOP2d-stride": Row(lambda: snn.BCOP2d(1, 4, 3, stride=2), (1, 6, 6), "orthogonal"),
    "BCOP2d-groups": Row(lambda: snn.BCOP2d(4, 8, 2, groups=2, dilation=(2, 1)), (4, 5, 4), "orthogonal"),
    "Cayley2d": Row(lambda: snn.Cayley2d(3, 3, 3), (3, 4, 4), "orthogonal"),
    "Cayley2d-wider": Row(lambda: snn.Cayley2d(2, 4, 3), (2, 4, 5), "orthogonal"),
    "Cayley2d-narrower": Row(lambda: snn.Cayley2d(4, 2, 3), (4, 5, 4), "orthogonal"),
    "Cayley2d-stride": Row(lambda: snn.Cayley2d(1, 4, 3, stride=2), (1, 6, 6), "orthogonal"),
    "Cayley2d-groups": Row(lambda: snn.Cayley2d(4, 8, 2, groups=2, dilation=(2, 1)), (4, 5, 4), "orthogonal"),
    "AOL2d": Row(lambda: snn.AOL2d(3, 3, 3), (3, 4, 4), "shrinking"),
    "AOL2d-circular": Row(lambda: snn.AOL2d(3, 5, 3, padding_mode="circular"), (3, 4, 5), "shrinking"),
    "AOL2d-even": Row(lambda: snn.AOL2d(4, 2, 2), (4, 4, 4), "shrinking"),
    "AOL2d-stride": Row(lambda: snn.AOL2d(1, 4, 3, stride=2), (1, 6, 6), "shrinking"),
    "SLL2d": Row(lambda: snn.SLL2d(3, 3, 3), (3, 4, 4), "residual"),
    "SLL2d-circular": Row(lambda: snn.SLL2d(3, 3, 3, padding_mode="circular"), (3, 4, 5), "residual"),
    "SLL2d-even-narrower": Row(lambda: snn.SLL2d(4, 2, 2), (4, 4, 4), "residual"),
    "SLL2d-stride": Row(lambda: snn.SLL2d(1, 6, 3, stride=2), (1, 6, 6), "residual"),
    "CPL2d": Row(lambda: snn.CPL2d(3, 3, 3), (3, 4, 4), "residual"),
    "CPL2d-circular": Row(lambda: snn.CPL2d(3, 3, 3, padding_mode="circular", bias=False), (3, 4, 5), "residual"),
    "CPL2d-even-narrower": Row(lambda: snn.CPL2d(4, 2, 2), (4, 4, 4), "residual"),
    "CPL2d-stride": Row(lambda: snn.CPL2d(1, 6, 3, stride=2), (1, 6, 6), "residual"),
    "OrthogonalLinear": Row(lambda: snn.OrthogonalLinear(6, 6), (6,), "orthogonal"),
    "OrthogonalLinear-down": Row(lambda: snn.OrthogonalLinear(40, 3), (40,), "orthogonal"),
    "OrthogonalLinear-up": Row(lambda: snn.OrthogonalLinear(3, 40), (3,), "orthogonal"),
    "NormalizedLinear": Row(lambda: snn.NormalizedLinear(6, 4), (6,), "bounded"),
    "BatchCentering": Row(lambda: snn.BatchCentering(3), (3, 4, 4), "orthogonal"),
    "BatchCentering-features": Row(lambda: snn.BatchCentering(6, bias=False), (6,), "orthogonal"),
    "InvertibleDownsample": Row(lambda: snn.InvertibleDownsample(2), (2, 4, 4), "orthogonal"),
    "Normalize": Row(lambda: snn.Normalize((0.4, 0.5), (0.2, 0.3)), (2, 3, 3), "bounded"),
    "MaxMin": Row(lambda: snn.MaxMin(), (4, 3, 3), "activation"),
    "GroupSort": Row(lambda: snn.GroupSort(2), (4, 3, 3), "activation"),
    "GroupSort-full": Row(lambda: snn.GroupSort(None), (5, 3, 3), "activation"),
    "Householder-1": Row(lambda: snn.Householder(4, order=1), (4, 3, 3), "activation"),
    "Householder-2": Row(lambda: snn.Householder(4, order=2), (4, 3, 3), "activation"),
}

# Complex layers take complex images: they cannot be certified, and say so.
COMPLEX_ROWS = {
    "SUC1d": Row(lambda: snn.SUC1d(3, 3, 3), (3, 5), "orthogonal"),
    "SUC2d": Row(lambda: snn.SUC2d(2, 2, 3), (2, 3, 4), "orthogonal"),
    "SUC3d": Row(lambda: snn.SUC3d(2, 2, 3), (2, 2, 2, 2), "orthogonal"),
}


# An example of each of PyTorch's own types, and the shape of one input.
TORCH = {
    nn.Identity: (nn.Identity(), (3,)),
    nn.Flatten: (nn.Flatten(), (2, 3)),
    nn.Unflatten: (nn.Unflatten(1, (2, 3)), (6,)),
    nn.PixelShuffle: (nn.PixelShuffle(2), (4, 2, 2)),
    nn.PixelUnshuffle: (nn.PixelUnshuffle(2), (1, 4, 4)),
    nn.ChannelShuffle: (nn.ChannelShuffle(2), (4, 2, 2)),
    nn.Dropout: (nn.Dropout(0.3), (3,)),
    nn.Dropout1d: (nn.Dropout1d(0.3), (2, 3)),
    nn.Dropout2d: (nn.Dropout2d(0.3), (2, 3, 3)),
    nn.Dropout3d: (nn.Dropout3d(0.3), (2, 3, 3, 3)),
    nn.AlphaDropout: (nn.AlphaDropout(0.3), (3,)),
    nn.FeatureAlphaDropout: (nn.FeatureAlphaDropout(0.3), (2, 3, 3)),
    nn.ZeroPad1d: (nn.ZeroPad1d((1, 2)), (2, 3)),
    nn.ZeroPad2d: (nn.ZeroPad2d(1), (2, 3, 3)),
    nn.ZeroPad3d: (nn.ZeroPad3d(1), (2, 2, 2, 2)),
    nn.ConstantPad1d: (nn.ConstantPad1d(1, 0.5), (2, 3)),
    nn.ConstantPad2d: (nn.ConstantPad2d(1, 0.5), (2, 3, 3)),
    nn.ConstantPad3d: (nn.ConstantPad3d(1, 0.5), (2, 2, 2, 2)),
    nn.ReLU: (nn.ReLU(), (3,)),
    nn.ReLU6: (nn.ReLU6(), (3,)),
    nn.Hardtanh: (nn.Hardtanh(-0.5, 0.7), (3,)),
    nn.Tanh: (nn.Tanh(), (3,)),
    nn.Softsign: (nn.Softsign(), (3,)),
    nn.LogSigmoid: (nn.LogSigmoid(), (3,)),
    nn.Sigmoid: (nn.Sigmoid(), (3,)),
    nn.SiLU: (nn.SiLU(), (3,)),
    nn.GELU: (nn.GELU(approximate="tanh"), (3,)),
    nn.LeakyReLU: (nn.LeakyReLU(0.3), (3,)),
    nn.PReLU: (nn.PReLU(3), (3, 2)),
    nn.ELU: (nn.ELU(0.7), (3,)),
    nn.CELU: (nn.CELU(0.7), (3,)),
    nn.SELU: (nn.SELU(), (3,)),
    nn.Softmax: (nn.Softmax(1), (3,)),
    nn.Linear: (nn.Linear(3, 2, bias=False), (3,)),
    nn.Conv1d: (nn.Conv1d(2, 3, 3, padding=1), (2, 5)),
    nn.Conv2d: (nn.Conv2d(2, 4, 3, stride=2, padding="valid", groups=2, bias=False), (2, 5, 5)),
    nn.Conv3d: (nn.Conv3d(2, 3, (1, 3, 3), padding=(0, 1, 1), padding_mode="circular"), (2, 3, 3, 3)),
    nn.ConvTranspose1d: (nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 4)),
    nn.ConvTranspose2d: (nn.ConvTranspose2d(2, 3, 3), (2, 3, 3)),
    nn.ConvTranspose3d: (nn.ConvTranspose3d(2, 3, 2, bias=False), (2, 2, 2, 2)),
    nn.BatchNorm1d: (nn.BatchNorm1d(3, eps=1e-3), (3,)),
    nn.BatchNorm2d: (nn.BatchNorm2d(2, affine=False), (2, 3, 3)),
    nn.BatchNorm3d: (nn.BatchNorm3d(2), (2, 2, 2, 2)),
    nn.MaxPool1d: (nn.MaxPool1d(2), (2, 4)),
    nn.MaxPool2d: (nn.MaxPool2d(3, 2, 1), (2, 5, 5)),
    nn.MaxPool3d: (nn.MaxPool3d(2, ceil_mode=True), (2, 3, 3, 3)),
    nn.AvgPool1d: (nn.AvgPool1d(2, padding=1, count_include_pad=False), (2, 4)),
    nn.AvgPool2d: (nn.AvgPool2d((2, 1), divisor_override=3), (2, 4, 4)),
    nn.AvgPool3d: (nn.AvgPool3d(2), (2, 4, 4, 4)),
    nn.AdaptiveAvgPool1d: (nn.AdaptiveAvgPool1d(2), (2, 5)),
    nn.AdaptiveAvgPool2d: (nn.AdaptiveAvgPool2d((2, 1)), (2, 5, 5)),
    nn.AdaptiveAvgPool3d: (nn.AdaptiveAvgPool3d(1), (2, 3, 3, 3)),
    nn.Sequential: (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), (3,)),
}
# Their bound is known, and their rounding is not.
NOT_CERTIFIED = {
    *(nn.AlphaDropout, nn.FeatureAlphaDropout, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.Tanh),
    *(nn.Softsign, nn.LogSigmoid, nn.Sigmoid, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU),
    *(nn.Softmax, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
}


def of_kind(*kinds: str) -> list[str]:
    """The rows that an assertion is about."""
    return [name for name, row in ROWS.items() if row.kind in kinds]


def built(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The layer of a row, always the same."""
    row = (ROWS | COMPLEX_ROWS)[name]
    torch.manual_seed(0)
    return row.build(), row.shape


def trained(layer: nn.Module, shape: tuple[int, ...], *, rate: float = 0.1, steps: int = 10) -> nn.Module:
    """The layer in eval mode after SGD towards a random target: far from where it began, power vectors on the way."""
    parameters = list(layer.parameters())
    if parameters:
        x = torch.randn(4, *shape, dtype=getattr(layer, "filter_dtype", torch.float32))
        target, before = torch.randn_like(layer(x)), [p.detach().clone() for p in parameters]
        optimiser = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
        for _ in range(steps):
            optimiser.zero_grad()
            (layer(x) - target).abs().square().mean().backward()
            optimiser.step()
        assert any(not torch.equal(p, q) for p, q in zip(parameters, before, strict=True) if p.numel())
    return layer.eval()


def public_layers() -> set[str]:
    """Every layer that skewconv.nn offers, by name."""
    offered = {name: getattr(snn, name) for name in snn.__all__}
    return {name for name, it in offered.items() if isinstance(it, type) and issubclass(it, nn.Module)}
