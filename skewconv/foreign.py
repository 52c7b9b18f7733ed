"""Weights trained with the SOC authors' code: layers, and LipConvNets as a LipConvnet and as a run.

A layer is random_conv_filter (m, m, k, k) with m = max(c_in stride^2, c_out), bias (c_out), correction (1,), and the
vectors of power iterations u1, v1, .., u4, v4, which are not needed here. Networks are known by the names and shapes of
their entries alone: layer1 .. layer5, each a sequence of blocks with a `conv` and an `activation`; then `last_layer`
in the code of 2022, `final_conv` in that of 2021. In 2021 the activation puts the minimum first, and SOC makes 10
convolutions in evaluation, not 12.
"""

import math
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from skewconv.choices import FOLDER
from skewconv.config import LoadingConfig, ModelConfig, TrainConfig, to_dict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.extras import optional
from skewconv.models import LipConvnet
from skewconv.nn import Householder, Normalize, NormalizedLinear, SOC2d
from skewconv.records import make_record, write_record
from skewconv.train.checkpoint import DataFacts, Header, Position, save
from skewconv.train.data import Dataset
from skewconv.train.environment import FILE, RECORD, make_folder, write_config
from skewconv.train.presets import recipe

State: TypeAlias = Mapping[str, Tensor]
_Layer = TypeVar("_Layer", bound=nn.Module)

#: convolutions of the authors' SOC in training
TRAIN_TERMS = 5
# The names under which trainers store a state dict.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
# The prefixes of nn.DataParallel, DistributedDataParallel and torch.compile.
_PREFIXES = ("module.", "_orig_mod.")
#: the normalisation of their data loaders, for CIFAR-10 and CIFAR-100 alike, and the side of the images
MEAN, STD, SIZE = (0.4914, 0.4822, 0.4465), 0.2507, 32
_STAGES = range(1, 6)
_KNOWN = "known is their LipConvNet of SOC layers (layer1.0.conv.random_conv_filter; then last_layer or final_conv)"
_HEADS = {2022: "last_layer", 2021: "final_conv"}
# Convolutions in evaluation, by year.
_EVAL_TERMS = {2022: 12, 2021: 10}
# Differences below this are those of float32.
_NOTICED = 1e-6


class ForeignWeightsError(SkewconvError):
    """Weights of other code that cannot become a layer or a network of this library."""


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a file of `torch.save` or of safetensors, on the CPU; nothing in the file is executed."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ForeignWeightsError(f"{path} is not a file: give a state dict, saved by torch.save or as safetensors")
    try:
        if file.suffix == ".safetensors":
            found = optional("safetensors.torch", "safetensors").load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ForeignWeightsError(
            f"{path} holds more than tensors, or is no file of torch.save: in the code that made it, "
            "torch.save(model.state_dict(), FILE), and give that"
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ForeignWeightsError(f"{path} is damaged, or no file of torch.save or safetensors: {reason}") from error
    return unwrapped(found)


def unwrapped(found: Any) -> dict[str, Tensor]:
    """The tensors by name, without the wrappers and prefixes of trainers."""
    if not isinstance(found, Mapping) or not found:
        raise ForeignWeightsError(f"a state dict maps names to tensors; this is a {type(found).__name__}")
    for name in _WRAPPERS:
        if isinstance(found.get(name), Mapping):
            return unwrapped(found[name])
    state = {str(name): value for name, value in found.items()}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ForeignWeightsError(f"a state dict maps names to tensors; here {name!r} is a {type(value).__name__}")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = under(state, prefix)
    return state


def under(state: State, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def names_of(state: State) -> str:
    names = sorted(state)
    return (", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")) or "none"


def entry(state: State, name: str) -> Tensor:
    """One tensor of a layer, in float32 or float64; raises if it is missing, no floating-point tensor or not finite."""
    if name not in state:
        raise ForeignWeightsError(f"the entry {name!r} is missing; there are {names_of(state)}")
    value = state[name].detach()
    if not value.is_floating_point():
        raise ForeignWeightsError(f"{name!r} is {value.dtype}: weights are floating-point numbers")
    if not bool(torch.isfinite(value).all()):
        raise ForeignWeightsError(f"{name!r} of this layer holds NaN or infinity: its training diverged")
    return value.to(torch.promote_types(value.dtype, torch.float32))


def soc_from_authors(
    state: State,
    *,
    in_channels: int | None = None,
    out_channels: int | None = None,
    stride: int = 1,
    eval_terms: int = 12,
) -> SOC2d:
    """Their SOC layer as a SOC2d: the same filter and Taylor polynomial, with a proven norm in place of an estimate.

    >>> import torch
    >>> state = {"random_conv_filter": torch.randn(8, 8, 3, 3), "bias": torch.zeros(8), "correction": torch.ones(1)}
    >>> soc_from_authors(state, in_channels=2, stride=2)
    SOC2d(2, 8, kernel_size=(3, 3), stride=(2, 2), norm_bound=3, in evaluation taylor ...

    Args:
        state: the entries of the layer.
        in_channels: default: the filter's channels / stride^2; give it where there are more outputs than inputs.
        out_channels: default: the length of the bias, or the filter's channels without a bias.
        stride: as in their layer.
        eval_terms: number of convolutions in evaluation.
    """
    raw, bias = entry(state, "random_conv_filter"), _bias(state)
    if raw.dim() != 4 or raw.shape[0] != raw.shape[1] or raw.shape[2] != raw.shape[3] or raw.shape[2] % 2 == 0:
        raise ForeignWeightsError(f"'random_conv_filter' has shape {tuple(raw.shape)}: theirs is (m, m, k, k), k odd")
    out = out_channels or (None if bias is None else len(bias))
    options: dict[str, Any] = {"in_channels": in_channels, "out_channels": out, "stride": stride}
    options |= {"series": "taylor", "train_degree": TRAIN_TERMS, "eval_degree": eval_terms, "bias": bias is not None}
    if "correction" in state:
        options["norm_bound"] = float(entry(state, "correction")) * raw.shape[2]
    return with_bias(SOC2d.from_filter(raw, **options), bias)


def _bias(state: State) -> Tensor | None:
    return entry(state, "bias") if "bias" in state else None


def with_bias(layer: _Layer, bias: Tensor | None) -> _Layer:
    own: Any = layer.bias
    if bias is not None:
        if bias.shape != own.shape:
            raise ForeignWeightsError(f"'bias' has shape {tuple(bias.shape)}: the layer needs {tuple(own.shape)}")
        with torch.no_grad():
            own.copy_(bias)
    return layer.eval()


@dataclass(frozen=True)
class ImportedNetwork:
    """A network of theirs as one of ours, in eval mode, for images in [0, 1]; the year is that of their code."""

    model: LipConvnet
    config: ModelConfig
    year: int


def lipconvnet_from_authors(state: State) -> ImportedNetwork:
    """Their LipConvNet of SOC layers as a LipConvnet for images in [0, 1] of 32 x 32 pixels.

    Their input normalisation, which their state dict does not hold, becomes the first module of the network.

    Args:
        state: the state dict; see :func:`read_state_dict` for a file.
    """
    state = unwrapped(state)
    year, config = _layout(state)
    last = under(state, f"{_HEADS[year]}.")
    common: Any = {name: getattr(config, name) for name in ("width", "activation", "head")}
    options = {name: getattr(config, name) for name in ("series", "train_degree", "eval_degree")}
    # Initialising draws random numbers only to overwrite them: the caller's generator is left alone.
    with torch.random.fork_rng(devices=[]):
        model = LipConvnet(config.depth, len(last["bias"]), **common, conv_options=options)
    model = model.to(dtype := entry(last, "bias").dtype).eval()
    model.body[0] = Normalize(MEAN, STD, dtype=dtype)
    channels, blocks, modules = 3, config.depth // 5, list(model.body)[1:]
    for number, (place, activation) in enumerate(zip(modules[::2], modules[1::2], strict=False)):
        name, stride = f"layer{number // blocks + 1}.{number % blocks}", 2 if (number + 1) % blocks == 0 else 1
        conv = under(state, f"{name}.conv.")
        with _fitting(f"{name}.conv does not fit a LipConvnet-{config.depth} of width {config.width}"):
            _load(place, conv, config, channels, stride)
        if isinstance(activation, Householder):
            # Theirs keeps the other side of the line; pi / 2 is the (min, max) of 2021.
            theta = under(state, f"{name}.activation.").get("theta", torch.tensor(0.5 * math.pi, dtype=torch.float64))
            angles = entry({"theta": theta}, "theta").flatten().double() + 2 * math.pi
            activation.theta.data.copy_(angles.expand_as(activation.theta))
        channels = len(conv["bias"])
    head: Any = model.head
    sizes = f"{model.features} features and {model.num_classes} classes (images of {SIZE} x {SIZE} pixels)"
    with _fitting(f"{_HEADS[year]} does not fit {sizes}"):
        if isinstance(head, NormalizedLinear):
            head.load_state_dict({"raw_weight": entry(last, "weight"), "bias": head.bias})
            with_bias(head, entry(last, "bias"))
        else:
            _load(head[0], last, config, model.features, 1)
    return ImportedNetwork(model, config, year)


def _load(place: Any, entries: State, config: ModelConfig, channels: int, stride: int) -> None:
    """Give a layer of ours the weights of theirs; raise if its shapes or its norm are others."""
    options: Any = {"in_channels": channels, "stride": stride, "eval_terms": config.eval_degree}
    layer = soc_from_authors(entries, **options)
    if abs(layer.norm_bound - place.norm_bound) > _NOTICED * place.norm_bound:
        raise ForeignWeightsError(
            f"its correction is {float(entries['correction']):g}: a LipConvnet scales filters by 0.7, and by 1 where "
            "they have one tap; take the layers one by one with skewconv.foreign.soc_from_authors"
        )
    place.load_state_dict(layer.state_dict())


def _layout(state: State) -> tuple[int, ModelConfig]:
    block = re.compile(r"layer([1-5])\.(\d+)\.(?:conv|activation)\.\w+")
    matches = [match for name in state if (match := block.fullmatch(name))]
    years = [year for year, name in _HEADS.items() if under(state, f"{name}.")]
    strange = [n for n in state if not block.fullmatch(n) and not any(n.startswith(f"{_HEADS[y]}.") for y in years)]
    if strange or len(years) != 1:
        found = f"such as {strange[0]!r}" if strange else "without last_layer and final_conv"
        raise ForeignWeightsError(f"{len(state)} entries that fit no layout, {found} ({names_of(state)}): {_KNOWN}")
    numbers = [{int(match[2]) for match in matches if int(match[1]) == stage} for stage in _STAGES]
    counts = [len(found) if found == set(range(len(found))) else 0 for found in numbers]
    if 0 in counts or len(set(counts)) > 1:
        raise ForeignWeightsError(f"the stages have {counts} blocks: a LipConvNet has as many in each; {_KNOWN}")
    first, head = under(state, "layer1.0.conv."), under(state, f"{_HEADS[years[0]]}.")
    if "random_conv_filter" not in first:
        raise ForeignWeightsError(f"layer1.0.conv has {names_of(first)}, and is no SOC layer: {_KNOWN}")
    angles = {name.rpartition(".")[2] for name in state if ".activation." in name}
    if angles & {"theta0", "theta1", "theta2"}:
        raise ForeignWeightsError(
            "the activation is HouseHolder_Order_2, with three angles a pair of channels (theta0, theta1, theta2): "
            "ours of order 2 folds twice and has two, so that theirs has no counterpart; train with maxmin or hh1"
        )
    channels, year = len(entry(first, "bias")), years[0]
    try:
        config = ModelConfig(
            depth=5 * counts[0],
            # A stage of one block has only its strided convolution, which doubles the channels.
            width=channels if counts[0] > 1 else channels // 2,
            # The (min, max) of 2021 is a Householder fold too, which keeps the other side.
            activation="householder" if angles or year == 2021 else "maxmin",
            head="normalized" if set(head) == {"weight", "bias"} else "conv",
            series="taylor",
            train_degree=TRAIN_TERMS,
            eval_degree=_EVAL_TERMS[year],
        )
    except ArgumentError as error:
        raise ForeignWeightsError(f"the network has {channels} channels in its first stage: {error}") from error
    return year, config


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ArgumentError, ForeignWeightsError) as error:
        raise ForeignWeightsError(f"{what}: {' '.join(str(error).split())}") from error


def run_config(imported: ImportedNetwork, data: str | None, source: str | None) -> TrainConfig:
    """The config of the run: the network, the data (default: CIFAR-10 or CIFAR-100), else the recipe for that data."""
    classes = imported.model.num_classes
    name = data or {10: "cifar10", 100: "cifar100"}.get(classes)
    if name is None:
        raise ArgumentError(
            f"the network has {classes} classes, neither 10 nor 100: give --data, cifar10 or folder:PATH"
        )
    loading = LoadingConfig(source=source, size=SIZE if name.startswith(FOLDER) else None)
    return replace(recipe(name), model=imported.config, loading=loading)


def write_run(imported: ImportedNetwork, config: TrainConfig, data: Dataset, folder: Path) -> dict[str, Any]:
    """Write the checkpoint (in float32), the record and the config into a new folder; return the record."""
    facts, classes = DataFacts.of(data), imported.model.num_classes
    if facts.image_shape != (3, SIZE, SIZE) or len(facts.classes) != classes:
        raise ForeignWeightsError(
            f"the network takes images (3, {SIZE}, {SIZE}) and has {classes} classes, but {facts.name} has "
            f"images {facts.image_shape} and {len(facts.classes)} classes: give the --data that it was trained on"
        )
    results = {
        "status": "imported",
        "layout": f"LipConvNet of the SOC authors' code of {imported.year}",
        "normalisation": {"mean": MEAN, "std": STD},
    }
    record = make_record("import", config=to_dict(config), seed=None, results=results)
    make_folder(folder)
    write_config(folder, config)
    write_record(folder / RECORD, record)
    # Last, as its presence makes the folder a run.
    save(folder / FILE, Header(config, facts, Position(finished=True), record), imported.model.float())
    return record
