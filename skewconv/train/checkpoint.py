"""The network of a config, and checkpoints: one safetensors file, written whole or not at all, of which nothing is run.

Tensors are named model/..., optimizer/<parameter>/... and random/...; all the rest is JSON in the file's header.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skewconv.choices import Arch
from skewconv.config import ModelConfig, TrainConfig, flag, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.models import LipConvnet, resnet18, resnet34, resnet50
from skewconv.ops import degree_for
from skewconv.records import atomic_write, remove_leftovers
from skewconv.train.data import DataError, Dataset
from skewconv.train.environment import CheckpointError

SCHEMA = 1
_KEY = "skewconv"
# The accuracy of an SOC layer in evaluation, unless its degree is given.
_EVAL_TOL = 1e-6
_RESNETS = {"resnet-18": resnet18, "resnet-34": resnet34, "resnet-50": resnet50}


@dataclass(frozen=True)
class DataFacts:
    """Facts of a dataset that its network needs; stored in every checkpoint, so that it loads without the images."""

    name: str
    fingerprint: str
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_images: int
    test_images: int

    @classmethod
    def of(cls, data: Dataset) -> "DataFacts":
        sizes = len(data.train), len(data.test)
        return cls(data.name, data.fingerprint, data.classes, data.image_shape, data.mean, data.std, *sizes)

    def agrees(self, other: "DataFacts") -> bool:
        """True for the same images, wherever they came from: moments see all of them, and round by the processor."""
        free = {"name": "", "fingerprint": "", "mean": (), "std": ()}
        same = {**vars(self), **free} == {**vars(other), **free}
        moments = zip((*self.mean, *self.std), (*other.mean, *other.std), strict=False)
        return same and all(math.isclose(one, two, rel_tol=1e-12, abs_tol=1e-12) for one, two in moments)


def check_data(data: Dataset, facts: DataFacts) -> None:
    found = DataFacts.of(data)
    if not facts.agrees(found):
        raise DataError(
            f"{data.name} holds {found.train_images} + {found.test_images} images now, with other contents than the "
            f"{facts.train_images} + {facts.test_images} this run was trained on: give it the same images, "
            "for a folder that has moved with --data folder:PATH"
        )


def check_norm_bound(model: ModelConfig) -> None:
    for name in ("norm_bound", "norm_bound_1x1"):
        if (bound := getattr(model, name)) is None:
            continue
        try:
            degree = max(model.eval_degree or degree_for(bound, _EVAL_TOL, model.series), model.train_degree or 1)
        except ArgumentError:
            degree = sys.maxsize
        # As logarithms: the power itself may overflow even in float64.
        if degree * math.log(max(bound, 1.0)) >= math.log(torch.finfo(torch.float32).max):
            raise ArgumentError(
                f"{flag(name)} is {bound:g}: in float32, powers of a filter that large overflow before --series "
                f"{model.series} has converged; give a smaller one, or another --train-degree or --eval-degree"
            )


def check_image_shape(arch: Arch, facts: DataFacts) -> None:
    _, height, width = facts.image_shape
    least, multiple = (2, 1) if arch == "lipconvnet" else (8, 8)
    if min(height, width) < least or height % multiple or width % multiple:
        rule = "sides of at least 2 pixels" if arch == "lipconvnet" else f"sides that are multiples of {multiple}"
        kind = "LipConvnet" if arch == "lipconvnet" else "ResNet"
        raise ArgumentError(
            f"the images of {facts.name} are {height} x {width}: a {kind} takes {rule}; for folder:PATH, resize them "
            "with --size"
        )
    if not max(facts.std) > 0:
        raise ArgumentError(
            f"all {facts.train_images} training images of {facts.name} have the same colour everywhere: there is "
            "nothing to tell their classes by; look at the files"
        )


def build_model(config: TrainConfig, facts: DataFacts) -> nn.Module:
    """The network of a config, for images of the dataset; initialised from torch's generator."""
    model, (channels, height, width) = config.model, facts.image_shape
    check_norm_bound(model)
    check_image_shape(model.arch, facts)
    # One deviation for all channels, so that the normalisation scales every perturbation alike: 0.2507 on CIFAR-10, as
    # in the authors' code; they have it for CIFAR-100 too, where the data's own is 0.2666.
    options: dict[str, Any] = {
        "width": model.width,
        "conv": model.conv,
        "padding_mode": model.padding_mode,
        "in_channels": channels,
        "mean": facts.mean,
        "std": sum(facts.std) / len(facts.std),
    }
    if model.conv == "soc":
        names = "series norm init_scale train_series train_degree eval_degree norm_bound norm_bound_1x1 learn_scale"
        values = {name: getattr(model, name) for name in names.split()}
        options["conv_options"] = {name: value for name, value in values.items() if value is not None}
    classes = len(facts.classes)
    if model.arch == "lipconvnet":
        side = height if height == width else (height, width)
        options |= {"activation": model.activation, "head": model.head, "input_size": side}
        options["circular_from"] = model.circular_from
        return LipConvnet(model.depth, classes, **options)
    return _RESNETS[model.arch](classes, activation=model.resnet_activation, **options)


@dataclass(frozen=True)
class Position:
    """Progress of a run: `step` steps made, the next is `step_in_epoch` of `epoch`."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    done: float = 0.0
    seconds: float = 0.0
    finished: bool = False


@dataclass(frozen=True)
class Header:
    config: TrainConfig
    data: DataFacts
    position: Position
    record: dict[str, Any]


def save(
    path: str | os.PathLike[str],
    header: Header,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    scaler: Mapping[str, float] | None = None,
) -> None:
    """Write a checkpoint, whole or not at all."""
    groups = {"model": model.state_dict()}
    scalars: dict[str, dict[str, Any]] | None = None
    if optimizer is not None:
        groups["random"] = {"cpu": torch.get_rng_state()}
        groups["random"] |= {f"cuda{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
        groups["optimizer"], scalars = {}, {}
        for index, state in optimizer.state_dict()["state"].items():
            found = {name: value for name, value in state.items() if isinstance(value, Tensor)}
            groups["optimizer"] |= {f"{index}/{name}": value for name, value in found.items()}
            scalars[str(index)] = {name: value for name, value in state.items() if name not in found}
    tensors = {f"{prefix}/{name}": tensor for prefix, group in groups.items() for name, tensor in group.items()}
    plain = {
        "schema": SCHEMA,
        "config": to_dict(header.config),
        "data": asdict(header.data),
        "position": asdict(header.position),
        "record": header.record,
        "optimizer": scalars,
        "scaler": dict(scaler or {}),
    }
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {_KEY: json.dumps(plain, allow_nan=False)}
    remove_leftovers(path)
    atomic_write(path, optional("safetensors.torch", "safetensors").save(content, metadata))


class Checkpoint:
    """A checkpoint file, checked when opened: its header now, its tensors when asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        plain, self._tensors = _read(self.path)
        try:
            if plain["schema"] != SCHEMA:
                raise ArgumentError(f"schema {plain['schema']!r}, this version reads {SCHEMA}")
            facts: dict[str, Any] = plain["data"]
            facts = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
            config, position = from_dict(TrainConfig, plain["config"]), Position(**plain["position"])
            self.header = Header(config, DataFacts(**facts), position, plain["record"])
            self._scalars = plain["optimizer"]
            self._scaler = plain["scaler"]
        except (KeyError, TypeError, ValueError, AttributeError, ArgumentError) as error:
            raise CheckpointError(f"{self.path}: its header is damaged or of another version: {error}") from error

    def restore_model(self, model: nn.Module) -> None:
        """Copy the weights into a network of the same build, to the bit."""
        stored = self._group("model")
        try:
            model.load_state_dict(stored)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{self.path}: its weights do not fit its own config: {reason}") from error
        # A layer may start its power iteration anew when weights are loaded; a resumed run keeps its own.
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in stored and stored[name].shape == buffer.shape:
                    buffer.copy_(stored[name])

    def initialise(self, model: nn.Module) -> None:
        """Copy the weights into a network of the same body; where the number of classes is another, its head stays."""
        stored, wanted, network = self._group("model"), model.state_dict(), cast(Any, model)
        outputs = network.num_classes if hasattr(model, "num_classes") else network.head.out_features
        if len(self.header.data.classes) not in (0, outputs):
            body = {name: tensor for name, tensor in stored.items() if not name.startswith("head.")}
            stored = body | {name: tensor for name, tensor in wanted.items() if name.startswith("head.")}
        try:
            model.load_state_dict(stored)
        except RuntimeError as error:
            raise CheckpointError(
                f"--init is {self.path}, a network of another build: give the flags that it was trained with (its "
                f"record.json has them): {error}"
            ) from error

    def restore_optimizer(self, optimizer: Optimizer) -> None:
        if self._scalars is None:
            raise CheckpointError(f"{self.path} holds no optimizer: it can be evaluated, not resumed")
        state: dict[int, dict[str, Any]] = {int(index): dict(s) for index, s in self._scalars.items()}
        for name, tensor in self._group("optimizer").items():
            index, _, field = name.partition("/")
            state.setdefault(int(index), {})[field] = tensor
        try:
            # Groups hold settings only, which the config gave the optimiser already.
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{self.path}: its optimizer does not fit its own config: {error}") from error

    def restore_scaler(self, precision: Any) -> None:
        """Restore the gradient scaler of 16-mixed, if there is one, in Fabric's precision plugin."""
        if self._scaler:
            precision.load_state_dict(self._scaler)

    def restore_random(self) -> None:
        for name, state in self._group("random").items():
            if name == "cpu":
                torch.set_rng_state(state)
            elif (index := int(name.removeprefix("cuda"))) < torch.cuda.device_count():
                torch.cuda.set_rng_state(state, index)

    def _group(self, prefix: str) -> dict[str, Tensor]:
        start = f"{prefix}/"
        return {name[len(start) :]: tensor for name, tensor in self._tensors.items() if name.startswith(start)}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    safetensors = optional("safetensors", "safetensors")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise CheckpointError(
                    f"{path} is a safetensors file, but no checkpoint of skewconv: give a run's folder"
                )
            return json.loads(metadata[_KEY]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged, truncated, or no safetensors file ({error}): give another checkpoint"
        ) from error
