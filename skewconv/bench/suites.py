"""The claims about speed, each a suite that measures its two sides in one run."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from skewconv.bench.literal import LiteralSOC, literal
from skewconv.bench.memory import peak_bytes
from skewconv.bench.timing import matrix_product_speed, side_by_side
from skewconv.errors import ArgumentError
from skewconv.frozen import freeze
from skewconv.models import LipConvnet, resnet18
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import SOC2d
from skewconv.nn.primitives import SkewExponential
from skewconv.nn.soc.skew_conv import TRAIN_TOL
from skewconv.ops import truncation_error

THREADS = 2
# The norms are those of a network that was just initialised; trained ones need a longer interval in some layers.
_TRACKED = "skewconv, norm tracked"
_FAST = "skewconv, frozen at 1e-3"
# A step is compared at the error that Algorithm 1 has in a layer; deep networks train with a smaller one by default.
_ERROR_OF_THE_PAPER = {"train_tol": TRAIN_TOL}


@dataclass(frozen=True)
class Entry:
    """One contestant: seconds, bytes at the peak, proven truncation error (in inference, of all layers), operations."""

    name: str
    seconds: float
    rounds: tuple[float, ...]
    peak_bytes: int | None = None
    proven_error: float | None = None
    multiply_adds: int | None = None
    share_of_product_speed: float | None = None


@dataclass(frozen=True)
class Claim:
    """``figure`` of ``numerator`` over ``denominator``, against its target."""

    what: str
    figure: float
    target: str
    met: bool


@dataclass(frozen=True)
class SuiteReport:
    """What a suite measured."""

    suite: str
    config: dict[str, Any]
    entries: tuple[Entry, ...]
    claims: tuple[Claim, ...] = field(default=())

    def __str__(self) -> str:
        lines = [f"{self.suite}: " + ", ".join(f"{k}={v}" for k, v in self.config.items())]
        for e in self.entries:
            parts = [f"  {e.name:<34}{e.seconds * 1e3:>10.1f} ms"]
            parts.append("" if e.peak_bytes is None else f"{e.peak_bytes / 2**20:>9.0f} MiB")
            parts.append("" if e.proven_error is None else f"  error <= {e.proven_error:.1e}")
            parts.append("" if e.multiply_adds is None else f"  {e.multiply_adds / 1e9:.1f} G multiply-adds")
            share = e.share_of_product_speed
            parts.append("" if share is None else f"  {share:.0%} of matrix-product speed")
            lines.append("".join(parts))
        lines += [f"  {'ok  ' if c.met else 'MISS'} {c.what}: {c.figure:.2f} (target {c.target})" for c in self.claims]
        return "\n".join(lines)


def _at_least(what: str, figure: float, target: float) -> Claim:
    return Claim(what, figure, f">= {target:g}", figure >= target)


def _at_most(what: str, figure: float, target: float) -> Claim:
    return Claim(what, figure, f"<= {target:g}", figure <= target)


def _entries(work: dict[str, Callable[[], object]], errors: dict[str, float], rounds: int) -> dict[str, Entry]:
    speed = matrix_product_speed()
    timings = side_by_side(work, rounds=rounds, threads=THREADS)
    found = {}
    for name, run in work.items():
        counter = FlopCounterMode(display=False, custom_mapping=_IN_PLACE)
        with counter:
            run()
        operations = counter.get_total_flops() // 2
        found[name] = Entry(
            name,
            timings[name].best,
            timings[name].rounds,
            peak_bytes(run),
            errors.get(name),
            operations,
            operations / timings[name].best / speed,
        )
    return found


def _product_flops(target: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(left) * int(right[-1])


# torch's counter knows the products that make new tensors, not those that add to one.
_IN_PLACE = {torch.ops.aten.addmm_: _product_flops, torch.ops.aten.baddbmm_: _product_flops}


def _training_step(model: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], object]:
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimiser.step()

    return step


def _inference(model: nn.Module, x: Tensor) -> Callable[[], object]:
    model.eval()

    @torch.inference_mode()
    def run() -> Tensor:
        return model(x)

    return run


def _largest_error(model: nn.Module, *, training: bool) -> float:
    """The largest proven truncation error among the layers."""
    return max(_errors(model, training=training), default=0.0)


def _summed_error(model: nn.Module) -> float:
    """The sum of the proven truncation errors in evaluation: what they are together, as no layer stretches."""
    return sum(_errors(model, training=False))


def _errors(model: nn.Module, *, training: bool) -> list[float]:
    errors = []
    for module in model.modules():
        if isinstance(module, SOC2d):
            errors.append(module.polynomial(training=training).truncation_error)
        elif isinstance(module, LiteralSOC):
            h, w = module.filter.shape[2:]
            degree = module.train_degree if training else module.eval_degree
            errors.append(truncation_error(module.factor * math.sqrt(h * w), degree, "taylor"))
        elif isinstance(module, SkewExponential):
            errors.append(module.polynomial.truncation_error)
    return errors


def training(depth: int, *, batch: int = 128, width: int = 32, rounds: int = 5) -> SuiteReport:
    """A training step of LipConvnet against the literal Algorithm 1."""
    torch.manual_seed(0)
    x, labels = torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))
    ours = LipConvnet(depth, width=width, conv_options=_ERROR_OF_THE_PAPER)
    tracked = LipConvnet(depth, width=width, conv_options={**_ERROR_OF_THE_PAPER, "norm": "tracked"})
    tracked(x[:1])  # the first pass finds the norms
    models = {"skewconv": ours, _TRACKED: tracked, "Algorithm 1": literal(copy.deepcopy(ours))}
    errors = {name: _largest_error(model, training=True) for name, model in models.items()}
    found = _entries({name: _training_step(model, x, labels) for name, model in models.items()}, errors, rounds)
    claims = tuple(
        claim
        for name, target in (("skewconv", 4.0 if depth == 5 else 2.5), (_TRACKED, 5.5 if depth == 5 else 3.8))
        for claim in (
            _at_least(
                f"LipConvnet-{depth} training step, Algorithm 1 / {name}",
                found["Algorithm 1"].seconds / found[name].seconds,
                target,
            ),
            _at_most(f"proven error, {name} / Algorithm 1", errors[name] / errors["Algorithm 1"], 1.0),
        )
    )
    return SuiteReport(f"training-{depth}", {"batch": batch, "width": width}, tuple(found.values()), claims)


def inference(padding_mode: str, *, batch: int = 128, width: int = 32, rounds: int = 7) -> SuiteReport:
    """Frozen inference of LipConvnet-5 against the literal twelve convolutions, and against BCOP's single one."""
    torch.manual_seed(0)
    x = torch.rand(batch, 3, 32, 32)
    model = LipConvnet(5, width=width, padding_mode=padding_mode).eval()  # type: ignore[arg-type]
    theirs = literal(copy.deepcopy(model)).eval()
    # The paper's error budget, shared by the layers of the frozen model: freezing gives the dearest the most of it.
    frozen = freeze(model, (3, 32, 32), tol=0.9 * _summed_error(theirs))
    models: dict[str, nn.Module] = {"skewconv, frozen": frozen, "skewconv": model, "Algorithm 1": theirs}
    errors = {name: _summed_error(m) for name, m in models.items()}
    errors["skewconv, frozen"] += errors["skewconv"]
    models[_FAST] = freeze(model, (3, 32, 32), tol=1e-3)
    errors[_FAST] = _summed_error(models[_FAST]) + errors["skewconv"]
    # BCOP is circular always; it stands beside both, as the paper compares it with SOC of zero padding.
    models["BCOP, frozen"] = freeze(LipConvnet(5, width=width, conv="bcop").eval(), (3, 32, 32))
    found = _entries({name: _inference(m, x) for name, m in models.items()}, errors, rounds)
    ours = found["skewconv, frozen"].seconds
    claims = [
        _at_least(
            f"inference, {padding_mode} padding, Algorithm 1 / frozen",
            found["Algorithm 1"].seconds / ours,
            5.0 if padding_mode == "zeros" else 20.0,
        ),
        _at_most("proven error, frozen / Algorithm 1", errors["skewconv, frozen"] / errors["Algorithm 1"], 1.0),
        _at_least(
            f"certified inference, {padding_mode} padding, Algorithm 1 / frozen at 1e-3",
            found["Algorithm 1"].seconds / found[_FAST].seconds,
            8.0 if padding_mode == "zeros" else 45.0,
        ),
    ]
    if padding_mode == "circular":
        claims.append(_at_most("frozen SOC / frozen BCOP", ours / found["BCOP, frozen"].seconds, 1.0))
    config = {"batch": batch, "width": width, "padding_mode": padding_mode}
    return SuiteReport(f"inference-{padding_mode}", config, tuple(found.values()), tuple(claims))


def residual(*, batch: int = 128, width: int = 64, rounds: int = 2) -> SuiteReport:
    """A training step of ResNet-18 with SOC against one with standard convolutions."""
    torch.manual_seed(0)
    x, labels = torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))
    ours = resnet18(conv="soc", width=width, conv_options=_ERROR_OF_THE_PAPER)
    plain = resnet18(conv="standard", width=width)
    found = _entries(
        {"SOC": _training_step(ours, x, labels), "standard": _training_step(plain, x, labels)},
        {"SOC": _largest_error(ours, training=True)},
        rounds,
    )
    claims = (
        _at_most("ResNet-18 training step, SOC / standard", found["SOC"].seconds / found["standard"].seconds, 6.0),
        _at_most(
            "proven error, SOC / Taylor of 6 terms",
            _largest_error(ours, training=True) / truncation_error(2.1, 5, "taylor"),
            1.0,
        ),
    )
    return SuiteReport("resnet", {"batch": batch, "width": width}, tuple(found.values()), claims)


def recompute(*, batch: int = 128, channels: int = 64, side: int = 32, rounds: int = 5) -> SuiteReport:
    """Peak memory of a layer's forward and backward pass with recompute=True, degree 4 and 16."""
    torch.manual_seed(0)
    x = torch.randn(batch, channels, side, side, requires_grad=True)

    def step(degree: int, again: bool) -> Callable[[], object]:
        layer = SOC2d(channels, channels, 3, train_degree=degree, recompute=again)
        return lambda: layer(x).sum().backward()

    work = {f"degree {d}{', recompute' if again else ''}": step(d, again) for d in (4, 16) for again in (False, True)}
    found = _entries(work, {}, rounds)
    peaks = {name: float(entry.peak_bytes or 0) for name, entry in found.items()}
    growth = peaks["degree 16, recompute"] / peaks["degree 4, recompute"]
    claims = (
        _at_most("peak memory with recompute, degree 16 / degree 4", growth, 1.1),
        _at_most(
            "time at degree 16, recompute / stored",
            found["degree 16, recompute"].seconds / found["degree 16"].seconds,
            1.4,
        ),
    )
    return SuiteReport("recompute", {"batch": batch, "channels": channels, "side": side}, tuple(found.values()), claims)


def layers(*, batch: int = 128, channels: int = 64, side: int = 16, rounds: int = 5) -> SuiteReport:
    """One layer of each kind inside a network: this library's, nn.Conv2d, and orthogonium's where it is installed.

    BCOP, Cayley and orthogonium's layers have circular padding, the others zeros unless they say so.
    """
    torch.manual_seed(0)
    x = torch.randn(batch, channels, side, side, requires_grad=True)
    soc = SOC2d(channels, channels, 3)
    contestants: dict[str, nn.Module] = {
        "SOC": soc,
        "SOC, norm tracked": SOC2d(channels, channels, 3, norm="tracked"),
        "SOC, circular": SOC2d(channels, channels, 3, padding_mode="circular"),
        "Algorithm 1": LiteralSOC(soc),
        "nn.Conv2d": nn.Conv2d(channels, channels, 3, padding=1),
        **_neighbours(channels),
        **_orthogonium(channels),
    }

    def step(layer: nn.Module) -> Callable[[], object]:
        return lambda: layer(x).square().mean().backward()

    proven = ("SOC", "SOC, norm tracked", "SOC, circular", "Algorithm 1")
    contestants["SOC, norm tracked"](x[:1].detach())  # the first pass finds the norm
    errors = {name: _largest_error(contestants[name], training=True) for name in proven}
    found = _entries({name: step(layer) for name, layer in contestants.items()}, errors, rounds)
    ratio = found["SOC, norm tracked"].seconds / found["nn.Conv2d"].seconds
    claims = (_at_most(f"one layer, {channels} channels at {side}x{side}, training, SOC / nn.Conv2d", ratio, 2.4),)
    return SuiteReport("layers", {"batch": batch, "channels": channels, "side": side}, tuple(found.values()), claims)


def _neighbours(channels: int) -> dict[str, nn.Module]:
    """Every other convolution of the registry, by its name."""
    others = [build for name, build in CONVOLUTIONS.items() if name not in ("soc", "standard")]
    built = [build(channels, channels, 3, 1, "zeros", {}) for build in others]
    return {type(layer).__name__.removesuffix("2d"): layer for layer in built}


def _orthogonium(channels: int) -> dict[str, nn.Module]:
    try:
        from orthogonium.layers import AdaptiveOrthoConv2d
        from orthogonium.layers.conv.adaptiveSOC import AdaptiveSOCConv2d
    except ImportError:
        return {}
    return {
        "orthogonium AOC": AdaptiveOrthoConv2d(channels, channels, 3),
        "orthogonium SOC": AdaptiveSOCConv2d(channels, channels, 3),
    }


SUITES: dict[str, Callable[[], SuiteReport]] = {
    "training-5": lambda: training(5),
    "training-20": lambda: training(20, rounds=3),
    "inference-zeros": lambda: inference("zeros"),
    "inference-circular": lambda: inference("circular"),
    "resnet": residual,
    "recompute": recompute,
    "layers": layers,
}


def run_suite(name: str) -> SuiteReport:
    """Run one suite by name."""
    if name not in SUITES:
        raise ArgumentError(f"no suite is called {name!r}; there are {', '.join(SUITES)}")
    return SUITES[name]()
