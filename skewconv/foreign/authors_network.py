"""LipConvNets of the authors' repository, from their state dicts into a LipConvnet."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.config import ModelConfig
from skewconv.errors import ArgumentError
from skewconv.foreign.authors_head import orthogonal_head
from skewconv.foreign.authors_layers import (
    TRAIN_TERMS,
    bcop_from_authors,
    cayley_from_authors,
    copy_bias,
    estimate_share,
    soc_from_authors,
    usual_correction,
)
from skewconv.foreign.authors_layout import Layout, layout_of
from skewconv.foreign.block_convolutions import distance_after
from skewconv.foreign.state import ForeignWeightsError, State, entry, plain_state_dict, under
from skewconv.models import LipConvnet
from skewconv.nn import Householder, NormalizedLinear

#: the normalisation of their data loaders, for CIFAR-10 and CIFAR-100 alike
MEAN, STD = (0.4914, 0.4822, 0.4465), 0.2507
SIZE = 32
# Iterations of Björck's that their BCOP makes, by the year of the code.
_ITERATIONS = {2021: 30, 2022: 20}
# Differences below this are those of float32, and not worth a word.
_NOTICED = 1e-6


@dataclass(frozen=True)
class ImportedNetwork:
    """A network of theirs as one of ours.

    Args:
        model: the network, in eval mode, for images in [0, 1].
        config: what it is built from.
        layout: what their state dict told.
        notes: sentences on what is not to the last digit as it was.
    """

    model: LipConvnet
    config: ModelConfig
    layout: Layout
    notes: tuple[str, ...]


def lipconvnet_from_authors(state: State) -> ImportedNetwork:
    """Their LipConvNet, of SOC, BCOP or Cayley layers, as a LipConvnet for images in [0, 1] of 32 x 32 pixels.

    Their input normalisation, which their state dict does not hold, becomes the first module of the network.

    Args:
        state: the state dict; see :func:`read_state_dict` for a file.

    Raises:
        ForeignWeightsError: the entries fit no layout that is known, or what they hold has no counterpart here.
    """
    state = plain_state_dict(state)
    layout = layout_of(state)
    config = _config(layout)
    convolution: dict[str, Any] = {
        name: getattr(config, name) for name in ("series", "train_degree", "eval_degree") if layout.conv == "soc"
    }
    if layout.conv == "bcop":
        convolution["order"] = config.bcop_order
    # Initialising draws random numbers only to overwrite them: the caller's generator is left alone.
    with torch.random.fork_rng(devices=[]):
        model = LipConvnet(
            config.depth,
            layout.num_classes,
            width=config.width,
            conv=config.conv,
            activation=config.activation,
            head=config.head,
            conv_options=convolution,
        )
    model = model.to(entry(state, f"{layout.head_name}.bias", layout.head_name).dtype).eval()
    set_normalisation(model)
    blocks = list(_pairs(list(model.body)[1:-1]))
    channels, side = 3, SIZE
    for prefix, (place, activation) in zip(layout.block_names(), blocks, strict=True):
        conv, stride = under(state, f"{prefix}conv."), int(_stride(place))
        try:
            place.load_state_dict(_convolution(conv, layout, place, channels, stride, side).state_dict())
        except (RuntimeError, ArgumentError, ForeignWeightsError) as error:
            reason = " ".join(str(error).split())
            raise ForeignWeightsError(
                f"{prefix}conv does not fit a LipConvnet-{config.depth} of width {config.width}: {reason}"
            ) from error
        if isinstance(activation, Householder):
            _set_angles(activation, under(state, f"{prefix}activation."))
        channels, side = len(conv["bias"]), side // stride
    _set_head(model, under(state, f"{layout.head_name}."), layout)
    return ImportedNetwork(model, config, layout, tuple(_notes(state, layout)))


def set_normalisation(model: LipConvnet) -> None:
    """Give a network the input normalisation of their data loaders."""
    normalize: Any = model.body[0]
    with torch.no_grad():
        normalize.mean.copy_(torch.tensor(MEAN, dtype=torch.float64))
        normalize.std.copy_(torch.tensor(STD, dtype=torch.float64))


def _config(layout: Layout) -> ModelConfig:
    settings: dict[str, Any] = {"depth": 5 * layout.blocks, "width": layout.width, "conv": layout.conv}
    settings |= {"activation": layout.activation, "head": layout.head}
    if layout.conv == "soc":
        settings |= {"series": "taylor", "train_degree": TRAIN_TERMS, "eval_degree": layout.eval_terms}
    if layout.conv == "bcop":
        settings["bcop_order"] = "lconvnet"
    try:
        return ModelConfig(**settings)
    except ArgumentError as error:
        raise ForeignWeightsError(f"the network has {layout.width} channels in its first stage: {error}") from error


def _pairs(modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, nn.Module]]:
    yield from zip(modules[::2], modules[1::2], strict=True)


def _stride(place: Any) -> int:
    return place.stride[0] if isinstance(place.stride, tuple) else place.stride


def _convolution(conv: State, layout: Layout, place: Any, channels: int, stride: int, side: int) -> nn.Module:
    if layout.conv == "bcop":
        return bcop_from_authors(conv, in_channels=channels, stride=stride)
    if layout.conv == "cayley":
        return cayley_from_authors(conv, size=side, stride=stride, kernel_size=place.kernel_size)
    if not usual_correction(conv):
        raise ForeignWeightsError(
            f"its correction is {float(conv['correction']):g}: a LipConvnet scales filters by 0.7, and by 1 where they "
            "have one tap; take the layers one by one with skewconv.foreign.soc_from_authors"
        )
    return soc_from_authors(conv, in_channels=channels, stride=stride, eval_terms=layout.eval_terms)


def _set_angles(activation: Householder, entries: State) -> None:
    """The angle of a fold and 2 pi: theirs keeps the other side of the line. Without angles it is their (min, max)."""
    angles = (
        entry(entries, "theta", "HouseHolder").flatten()
        if entries
        else torch.full((1,), 0.5 * math.pi, dtype=torch.float64)
    )
    with torch.no_grad():
        activation.theta.copy_((angles.to(torch.float64) + 2 * math.pi).expand_as(activation.theta))


def _set_head(model: LipConvnet, entries: State, layout: Layout) -> None:
    head: Any = model.head
    try:
        if isinstance(head, NormalizedLinear):
            weights: dict[str, Tensor] = {"raw_weight": entry(entries, "weight", layout.head_name)}
        else:
            weights = orthogonal_head(entries, layout.conv, head.in_features, head.out_features)
        head.load_state_dict({**weights, "bias": head.bias})
        copy_bias(head, entry(entries, "bias", layout.head_name))
    except (RuntimeError, ArgumentError, ForeignWeightsError) as error:
        reason = " ".join(str(error).split())
        raise ForeignWeightsError(
            f"{layout.head_name} does not fit {head.in_features} features and {head.out_features} classes (images of "
            f"{SIZE} x {SIZE} pixels): {reason}"
        ) from error


def _notes(state: State, layout: Layout) -> Iterator[str]:
    layers = [under(state, f"{prefix}conv.") for prefix in layout.block_names()]
    if layout.conv == "soc":
        share = min((estimate_share(layer) for layer in layers if "u1" in layer), default=1.0)
        if share < 1 - _NOTICED:
            yield (
                f"their estimates of the filters' norms are as low as {share:.6f} of the proven bounds: a filter here "
                "is smaller by that factor"
            )
        if layout.head == "orthogonal" and layout.year == 2021:
            yield "the last layer is the exponential itself; theirs is its polynomial of degree 10, 2.6e-8 from it"
    if layout.conv == "bcop":
        steps = _ITERATIONS[layout.year]
        far = max(distance_after(entry(layer, "conv_matrices", "a BCOP layer"), steps) for layer in layers)
        if far > _NOTICED:
            yield f"their {steps} iterations leave matrices {far:.2g} from orthogonal; here they are orthogonal"
    if layout.year == 2021:
        yield "the activation of 2021, (min, max), is a Householder fold whose angles begin at 5 pi / 2"
