"""From a config to its dataset and its network."""

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from skewconv.choices import Arch, SplitName
from skewconv.config import ModelConfig, TrainConfig, require
from skewconv.errors import ArgumentError
from skewconv.models import LipConvnet, resnet18, resnet34, resnet50
from skewconv.ops import degree_for
from skewconv.train.data import Augmentation, Batches, DataError, Dataset, Split, hold_out, load_dataset

# The accuracy of an SOC layer in evaluation, unless its degree is given.
_EVAL_TOL = 1e-6
# The optimizer steps of a run whose number of epochs is chosen here; three hundred drawn shapes need about 800.
_STEPS, _LEAST_EPOCHS = 1200, 10
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


def load_data(config: TrainConfig) -> Dataset:
    names = ("source", "size", "test_fraction", "skip_bad")
    return load_dataset(config.data, **{name: getattr(config.loading, name) for name in names})


@dataclass(frozen=True)
class Splits:
    """The images to train on, and those to evaluate on: the test split, or a validation split."""

    data: Dataset
    train: Split
    eval: Split
    name: SplitName


def make_splits(config: TrainConfig, data: Dataset) -> Splits:
    """The dataset's own splits, or its training images split in two; all of them give the mean and deviation."""
    count, batch = config.loading.holdout, config.loading.batch_size
    if count == 0:
        return Splits(data, data.train, data.test, "test")
    if (most := len(data.train) - batch) < count:
        raise ArgumentError(
            f"--holdout is {count}: of the {len(data.train)} training images of {data.name} at most {max(0, most)} can "
            f"be held out, so that a batch of {batch} is left to train on"
        )
    return Splits(data, *hold_out(data.train, count), "validation")


def fit_to_data(config: TrainConfig, data: Dataset, processes: int = 1) -> tuple[TrainConfig, Splits]:
    """The config with batches and epochs chosen by the number of images where it has 0, and its images; or refused."""
    images, size = len(data.train) - config.loading.holdout, config.loading.batch_size
    if size == 0:
        size = min(128, max(8, 1 << max(0, (images // 8).bit_length() - 1)))
        size = max(processes, size - size % processes)
    if 0 < (most := images - images % processes) < size:
        size = most
    if size != config.loading.batch_size:
        optim = replace(config.optim, accumulate=min(config.optim.accumulate, size // processes))
        config = replace(config, optim=optim, loading=replace(config.loading, batch_size=size))
    steps = max(1, images // size)
    if config.epochs == 0:
        config = replace(config, epochs=max(_LEAST_EPOCHS, math.ceil(_STEPS / steps)))
    if config.eval_every == 0:
        config = replace(config, eval_every=math.ceil(_STEPS / 10 / steps))
    splits = make_splits(config, data)
    check_norm_bound(config.model)
    check_image_shape(config.model.arch, DataFacts.of(data))
    return config, splits


def epoch_batches(config: TrainConfig, splits: Splits, fabric: Any, *, epoch: int, start_step: int = 0) -> Batches:
    rest, processes = len(splits.train) % config.loading.batch_size, fabric.world_size
    rule = (
        f"off for {processes} processes: the last batch of an epoch has {rest} images, which they cannot share equally"
    )
    require(config.loading, "keep_last", not config.loading.keep_last or rest % processes == 0, rule)
    loading, own = config.loading, splits.data.augmentation
    padding = own.padding if loading.padding is None else loading.padding
    flip = own.flip if loading.flip is None else loading.flip
    augment = Augmentation(padding, flip, loading.alternate_flip)
    return Batches(
        splits.train,
        config.loading.batch_size,
        seed=config.seed,
        epoch=epoch,
        start_step=start_step,
        augment=augment if loading.augment else None,
        drop_last=not loading.keep_last,
        device=fabric.device,
        rank=fabric.global_rank,
        world_size=processes,
    )


def check_norm_bound(model: ModelConfig) -> None:
    if (bound := model.norm_bound) is None:
        return
    try:
        degree = max(model.eval_degree or degree_for(bound, _EVAL_TOL, model.series), model.train_degree or 1)
    except ArgumentError:
        degree = sys.maxsize
    # As logarithms: the power itself may overflow even in float64.
    if degree * math.log(max(bound, 1.0)) >= math.log(torch.finfo(torch.float32).max):
        raise ArgumentError(
            f"--norm-bound is {bound:g}: in float32, powers of a filter that large overflow before --series "
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
        names = "series norm init_scale train_series train_degree eval_degree norm_bound learn_scale"
        values = {name: getattr(model, name) for name in names.split()}
        options["conv_options"] = {name: value for name, value in values.items() if value is not None}
    if model.conv == "bcop":
        options["conv_options"] = {"order": model.bcop_order}
    classes = len(facts.classes)
    if model.arch == "lipconvnet":
        side = height if height == width else (height, width)
        options |= {"activation": model.activation, "head": model.head, "input_size": side}
        return LipConvnet(model.depth, classes, **options)
    return _RESNETS[model.arch](classes, activation=model.resnet_activation, **options)


def check_data(data: Dataset, facts: DataFacts) -> None:
    found = DataFacts.of(data)
    if not facts.agrees(found):
        raise DataError(
            f"{data.name} holds {found.train_images} + {found.test_images} images now, with other contents than the "
            f"{facts.train_images} + {facts.test_images} this run was trained on: give it the same images, "
            "for a folder that has moved with --data folder:PATH"
        )
