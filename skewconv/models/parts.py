"""The parts a model is built from, by name, one literal registry for each kind; and the base class of networks."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from torch import Tensor, nn

from skewconv.choices import ActivationName, ConvName, HeadName, PaddingMode, ResNetActivationName
from skewconv.errors import ArgumentError, DtypeError, ShapeError
from skewconv.nn import AOL2d, BCOP2d, Cayley2d, CPL2d, GroupSort, Householder, MaxMin, SLL2d, SOC2d
from skewconv.nn.linear import NormalizedLinear, OrthogonalLinear
from skewconv.nn.lowering import sequence
from skewconv.nn.proven_conv import SquareConv2d
from skewconv.ops.torch_modes import between_layers

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
# One number for all channels, so that the normalisation scales every perturbation alike. From the authors' code: the
# paper does not mention a normalisation.
CIFAR10_STD = 0.2507

T = TypeVar("T")
Options: TypeAlias = dict[str, Any]
#: (channels in, channels out, kernel, stride, padding mode, further arguments) -> a convolution
Builder: TypeAlias = Callable[[int, int, int, int, PaddingMode, Options], nn.Module]


def _square(kind: type[SquareConv2d]) -> Builder:
    """A layer that takes the padding mode, unless it is circular by construction."""

    def build(c_in: int, c_out: int, kernel: int, stride: int, mode: PaddingMode, options: Options) -> nn.Module:
        known = mode if mode in kind.padding_modes else None
        return kind(c_in, c_out, kernel, stride, padding_mode=known, **options)

    return build


def _residual(kind: type[SquareConv2d]) -> Builder:
    """A layer that keeps its channels, behind an orthogonal change of channels and resolution where one is needed."""

    def build(c_in: int, c_out: int, kernel: int, stride: int, mode: PaddingMode, options: Options) -> nn.Module:
        if c_in * stride**2 == c_out:
            return kind(c_in, c_out, kernel, stride, padding_mode=mode, **options)
        change = SOC2d(c_in, c_out, 1, stride, bias=False)
        return nn.Sequential(change, kind(c_out, c_out, kernel, padding_mode=mode, **options))

    return build


def _soc(c_in: int, c_out: int, kernel: int, stride: int, mode: PaddingMode, options: Options) -> nn.Module:
    """SOC; filters of one tap have a norm bound of their own."""
    bounds = {name: options[name] for name in ("norm_bound", "norm_bound_1x1") if name in options}
    kept = {name: value for name, value in options.items() if name not in bounds}
    bound = bounds.get("norm_bound" if kernel > 1 else "norm_bound_1x1")
    return SOC2d(c_in, c_out, kernel, stride, padding_mode=mode, norm_bound=bound, **kept)


def _standard(c_in: int, c_out: int, kernel: int, stride: int, mode: PaddingMode, options: Options) -> nn.Module:
    return nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, padding_mode=mode, **options)


CONVOLUTIONS: Mapping[ConvName, Builder] = {
    "soc": _soc,
    "bcop": _square(BCOP2d),
    "cayley": _square(Cayley2d),
    "aol": _square(AOL2d),
    "sll": _residual(SLL2d),
    "cpl": _residual(CPL2d),
    "standard": _standard,
}

ACTIVATIONS: Mapping[ActivationName, Callable[[int], nn.Module]] = {
    "maxmin": lambda channels: MaxMin(),
    "groupsort": lambda channels: GroupSort(),
    "householder": lambda channels: Householder(channels, order=1),
    "householder2": lambda channels: Householder(channels, order=2),
}

# The choices of the authors' code; the paper does not say which one its ResNets have.
RESNET_ACTIVATIONS: Mapping[ResNetActivationName, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "swish": nn.SiLU,
    "maxmin": MaxMin,
}

Head: TypeAlias = Callable[[int, int, Callable[[int, int], nn.Module]], nn.Module]

# From the pixels' channels (features, 1, 1), the number of classes, and what builds a 1 x 1 convolution of the network.
HEADS: Mapping[HeadName, Head] = {
    "orthogonal": lambda features, classes, conv: OrthogonalLinear(features, classes),
    "normalized": lambda features, classes, conv: NormalizedLinear(features, classes),
    "conv": lambda features, classes, conv: nn.Sequential(conv(features, classes), nn.Flatten()),
}


def choose(kind: str, registry: Mapping[Any, T], name: str) -> T:
    """The entry of a registry, or an error that lists them."""
    if name not in registry:
        raise ArgumentError(f"{kind} must be one of {', '.join(map(repr, registry))}, got {name!r}")
    return registry[name]


def default_mean(in_channels: int) -> tuple[float, ...]:
    """The mean of CIFAR-10 for three channels, the middle of [0, 1] for others."""
    return CIFAR10_MEAN if in_channels == 3 else (0.5,) * in_channels


class Classifier(nn.Module):
    """Images in [0, 1] to logits: a body whose first module normalises the images, then a head.

    The images have ``in_channels`` channels and the size ``image_size``, (h, w), or any size if that is None.
    """

    def __init__(
        self, body: nn.Sequential, head: nn.Module, in_channels: int, image_size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.in_channels, self.image_size = in_channels, image_size
        between_layers(self)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, height, width) in [0, 1] -> (batch, num_classes)."""
        self._check(x)
        return self.head(self.body(x))

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        return sequence(body=self.body, head=self.head)

    def _check(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            return  # a tracer of torch.fx puts something else in the place of the images
        sides = "h, w" if self.image_size is None else f"{self.image_size[0]}, {self.image_size[1]}"
        expected = f"expected (n, {self.in_channels}, {sides}) in [0, 1]"
        if not x.is_floating_point():
            raise DtypeError(f"{expected}, got {x.dtype}: divide pixels from 0 to 255 by 255")
        if x.dim() == 3:
            raise ShapeError(f"{expected}, got {tuple(x.shape)}: give a batch, such as x[None]")
        wrong_channels = x.dim() == 4 and x.shape[1] != self.in_channels
        wrong_size = self.image_size is not None and tuple(x.shape[2:]) != self.image_size
        if x.dim() != 4 or wrong_channels or wrong_size:
            raise ShapeError(f"{expected}, got {tuple(x.shape)}: resize the images, or build the network for this size")
