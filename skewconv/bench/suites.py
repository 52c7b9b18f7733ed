"""The claims about speed, each a suite that measures both sides in one run; Algorithm 1 as the paper writes it."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from skewconv.bench.measure import matrix_product_speed, peak_bytes, side_by_side
from skewconv.errors import ArgumentError
from skewconv.frozen import freeze
from skewconv.models import LipConvnet, resnet18
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import SOC2d
from skewconv.nn.module_tools import replace_module
from skewconv.nn.soc.frozen_series import FrozenSeries
from skewconv.nn.soc.skew_conv import TRAIN_TOL
from skewconv.ops import truncation_error

THREADS = 2
# The norms are those of a network that was just initialised; trained ones need a longer interval in some layers.
_TRACKED = "skewconv, norm tracked"
_FAST = "skewconv, frozen at 1e-3"
# A step is compared at the error that Algorithm 1 has in a layer; deep networks train with a smaller one by default.
_ERROR_OF_THE_PAPER = {"train_tol": TRAIN_TOL}


class LiteralSOC(nn.Module):
    """Algorithm 1 with its authors' choices: autograd through a Taylor series, four norms by power iteration.

    Args:
        layer: the SOC2d whose shapes, stride and bias to take over; zero padding or circular.
        train_degree, eval_degree: number of convolutions.
    """

    def __init__(self, layer: SOC2d, train_degree: int = 5, eval_degree: int = 12) -> None:
        super().__init__()
        m, (h, w) = layer.channels, layer.kernel_size
        self.read, self.kept, self.stride = layer.read_channels, layer.kept_channels, layer.stride[0]
        self.circular = layer.padding_mode == "circular"
        self.train_degree, self.eval_degree = train_degree, eval_degree
        self.factor = 0.7 if h * w > 1 else 1.0
        self.filter = nn.Parameter(torch.randn(m, m, h, w))
        self.bias = nn.Parameter(torch.zeros(layer.out_channels))
        # Left and right vectors of R, S, T, U, in the shapes in which they broadcast against the filter.
        shapes = [((m, 1, h, 1), (1, m, 1, w)), ((m, 1, 1, w), (1, m, h, 1)), ((m, 1, 1, 1), (1, m, h, w))]
        shapes.append(((m, 1, h, w), (1, m, 1, 1)))
        for i, (left, right) in enumerate(shapes):
            self.register_buffer(f"u{i}", F.normalize(torch.randn(left).flatten(), dim=0).view(left))
            self.register_buffer(f"v{i}", F.normalize(torch.randn(right).flatten(), dim=0).view(right))

    def _normalized(self) -> Tensor:
        skew = self.filter - self.filter.transpose(0, 1).flip(2, 3)
        norms = []
        for i in range(4):
            u, v = getattr(self, f"u{i}"), getattr(self, f"v{i}")
            with torch.no_grad():
                if self.training:
                    v.copy_(_unit_sum(skew * u, v))
                    u.copy_(_unit_sum(skew * v, u))
            norms.append((skew * u * v).sum())
        return self.factor * skew / torch.stack(norms).min()

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = F.pixel_unshuffle(x, self.stride)
        x = F.pad(x, (0, 0, 0, 0, 0, len(self.filter) - x.shape[1]))
        weight = self._normalized()
        margin = weight.shape[2] // 2
        y, term = x, x
        for j in range(1, (self.train_degree if self.training else self.eval_degree) + 1):
            padded = F.pad(term, (margin,) * 4, mode="circular") if self.circular and margin else term
            term = F.conv2d(padded, weight, padding=0 if self.circular else margin) / j
            y = y + term
        return y[:, : self.kept] + self.bias.view(1, -1, 1, 1)


def _unit_sum(product: Tensor, like: Tensor) -> Tensor:
    """The sum over the axes along which a vector has length one, normalised."""
    total = product.sum([axis for axis, n in enumerate(like.shape) if n == 1], keepdim=True)
    return total / total.norm()


def literal(model: nn.Module, train_degree: int = 5, eval_degree: int = 12) -> nn.Module:
    """The model with every SOC2d replaced, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, SOC2d):
            model = replace_module(model, name, LiteralSOC(module, train_degree, eval_degree))
    return model


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

    def __str__(self) -> str:
        cells = (
            (self.peak_bytes, lambda found: f"{found / 2**20:>9.0f} MiB"),
            (self.proven_error, "  error <= {:.1e}".format),
            (self.multiply_adds, lambda found: f"  {found / 1e9:.1f} G multiply-adds"),
            (self.share_of_product_speed, "  {:.0%} of matrix-product speed".format),
        )
        shown = "".join(text(value) for value, text in cells if value is not None)
        return f"  {self.name:<34}{self.seconds * 1e3:>10.1f} ms{shown}"


@dataclass(frozen=True)
class Claim:
    """A measured ratio against its target."""

    what: str
    figure: float
    target: str
    met: bool

    def __str__(self) -> str:
        return f"  {'ok  ' if self.met else 'MISS'} {self.what}: {self.figure:.2f} (target {self.target})"


@dataclass(frozen=True)
class SuiteReport:
    """The measurements of a suite."""

    suite: str
    config: dict[str, Any]
    entries: tuple[Entry, ...]
    claims: tuple[Claim, ...] = ()

    def __str__(self) -> str:
        head = f"{self.suite}: " + ", ".join(f"{k}={v}" for k, v in self.config.items())
        return "\n".join([head, *map(str, self.entries), *map(str, self.claims)])


def _at_least(what: str, figure: float, target: float) -> Claim:
    return Claim(what, figure, f">= {target:g}", figure >= target)


def _at_most(what: str, figure: float, target: float) -> Claim:
    return Claim(what, figure, f"<= {target:g}", figure <= target)


def _entries(work: Mapping[str, Callable[[], object]], errors: dict[str, float], rounds: int) -> dict[str, Entry]:
    speed = matrix_product_speed()
    found = {}
    for name, timing in side_by_side(work, rounds=rounds, threads=THREADS).items():
        with FlopCounterMode(display=False, custom_mapping=_IN_PLACE) as counter:
            work[name]()
        operations = counter.get_total_flops() // 2
        share = operations / timing.best / speed
        peak = peak_bytes(work[name])
        found[name] = Entry(name, timing.best, timing.rounds, peak, errors.get(name), operations, share)
    return found


def _product_flops(target: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(left) * int(right[-1])


# torch's counter knows the products that make new tensors, not those that add to one.
_IN_PLACE = {torch.ops.aten.addmm_: _product_flops, torch.ops.aten.baddbmm_: _product_flops}


def _training_step(model: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], object]:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def _errors(model: nn.Module, *, training: bool) -> list[float]:
    """The proven truncation error of each layer; in evaluation they add up, as no layer stretches."""
    errors = []
    for module in model.modules():
        if isinstance(module, SOC2d):
            errors.append(module.polynomial(training=training).truncation_error)
        elif isinstance(module, LiteralSOC):
            degree = module.train_degree if training else module.eval_degree
            errors.append(truncation_error(module.factor * math.sqrt(math.prod(module.filter.shape[2:])), degree))
        elif isinstance(module, FrozenSeries):
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
    errors = {name: max(_errors(model, training=True)) for name, model in models.items()}
    found = _entries({name: _training_step(model, x, labels) for name, model in models.items()}, errors, rounds)
    claims: list[Claim] = []
    for name, target in (("skewconv", 4.0 if depth == 5 else 2.5), (_TRACKED, 5.5 if depth == 5 else 3.8)):
        ratio = found["Algorithm 1"].seconds / found[name].seconds
        claims += [
            _at_least(f"LipConvnet-{depth} training step, Algorithm 1 / {name}", ratio, target),
            _at_most(f"proven error, {name} / Algorithm 1", errors[name] / errors["Algorithm 1"], 1.0),
        ]
    return SuiteReport(f"training-{depth}", {"batch": batch, "width": width}, tuple(found.values()), tuple(claims))


def inference(padding_mode: str, *, batch: int = 128, width: int = 32, rounds: int = 7) -> SuiteReport:
    """Frozen inference of LipConvnet-5 against the literal twelve convolutions, and against BCOP's single one."""
    torch.manual_seed(0)
    x, circular = torch.rand(batch, 3, 32, 32), padding_mode == "circular"
    model = LipConvnet(5, width=width, padding_mode=padding_mode).eval()  # type: ignore[arg-type]
    models: dict[str, nn.Module] = {"skewconv": model, "Algorithm 1": literal(copy.deepcopy(model)).eval()}
    errors = {name: sum(_errors(each, training=False)) for name, each in models.items()}
    # The paper's error budget, shared by the layers of the frozen model: freezing gives the dearest the most of it.
    for name, tol in (("skewconv, frozen", 0.9 * errors["Algorithm 1"]), (_FAST, 1e-3)):
        models[name] = freeze(model, (3, 32, 32), tol=tol)
        errors[name] = sum(_errors(models[name], training=False)) + errors["skewconv"]
    if circular:
        models["BCOP, frozen"] = freeze(LipConvnet(5, width=width, conv="bcop").eval(), (3, 32, 32))
    work = {name: torch.inference_mode()(partial(each.eval(), x)) for name, each in models.items()}
    found = _entries(work, errors, rounds)
    ours, theirs, fast = (found[name].seconds for name in ("skewconv, frozen", "Algorithm 1", _FAST))
    speedup, fast_speedup = f"{padding_mode} padding, Algorithm 1 / frozen", theirs / fast
    claims = [
        _at_least(f"inference, {speedup}", theirs / ours, 20.0 if circular else 5.0),
        _at_most("proven error, frozen / Algorithm 1", errors["skewconv, frozen"] / errors["Algorithm 1"], 1.0),
        _at_least(f"certified inference, {speedup} at 1e-3", fast_speedup, 45.0 if circular else 8.0),
    ]
    if circular:
        claims.append(_at_most("frozen SOC / frozen BCOP", ours / found["BCOP, frozen"].seconds, 1.0))
    config = {"batch": batch, "width": width, "padding_mode": padding_mode}
    return SuiteReport(f"inference-{padding_mode}", config, tuple(found.values()), tuple(claims))


def residual(*, batch: int = 128, width: int = 64, rounds: int = 2) -> SuiteReport:
    """A training step of ResNet-18 with SOC against one with standard convolutions."""
    torch.manual_seed(0)
    x, labels = torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))
    ours = resnet18(conv="soc", width=width, conv_options=_ERROR_OF_THE_PAPER)
    models = {"SOC": ours, "standard": resnet18(conv="standard", width=width)}
    error = max(_errors(ours, training=True))
    work = {name: _training_step(model, x, labels) for name, model in models.items()}
    found = _entries(work, {"SOC": error}, rounds)
    claims = (
        _at_most("ResNet-18 training step, SOC / standard", found["SOC"].seconds / found["standard"].seconds, 6.0),
        _at_most("proven error, SOC / Taylor of 6 terms", error / truncation_error(2.1, 5, "taylor"), 1.0),
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
    low, high, stored = (found[name] for name in ("degree 4, recompute", "degree 16, recompute", "degree 16"))
    growth = (high.peak_bytes or 0) / (low.peak_bytes or 1)
    claims = (
        _at_most("peak memory with recompute, degree 16 / degree 4", growth, 1.1),
        _at_most("time at degree 16, recompute / stored", high.seconds / stored.seconds, 1.4),
    )
    return SuiteReport("recompute", {"batch": batch, "channels": channels, "side": side}, tuple(found.values()), claims)


def layers(*, batch: int = 128, channels: int = 64, side: int = 16, rounds: int = 5) -> SuiteReport:
    """One layer of each kind inside a network: this library's, nn.Conv2d, and orthogonium's where it is installed.

    BCOP, Cayley and orthogonium's layers have circular padding, the others zeros unless they say so.
    """
    torch.manual_seed(0)
    x = torch.randn(batch, channels, side, side, requires_grad=True)
    soc, tracked = SOC2d(channels, channels, 3), SOC2d(channels, channels, 3, norm="tracked")
    tracked(x[:1].detach())  # the first pass finds the norm
    proven: dict[str, nn.Module] = {
        "SOC": soc,
        "SOC, norm tracked": tracked,
        "SOC, circular": SOC2d(channels, channels, 3, padding_mode="circular"),
        "Algorithm 1": LiteralSOC(soc),
    }
    contestants = {**proven, "nn.Conv2d": nn.Conv2d(channels, channels, 3, padding=1), **_other_layers(channels)}

    def step(layer: nn.Module) -> Callable[[], object]:
        return lambda: layer(x).square().mean().backward()

    errors = {name: max(_errors(layer, training=True)) for name, layer in proven.items()}
    found = _entries({name: step(layer) for name, layer in contestants.items()}, errors, rounds)
    ratio = found["SOC, norm tracked"].seconds / found["nn.Conv2d"].seconds
    claims = (_at_most(f"one layer, {channels} channels at {side}x{side}, training, SOC / nn.Conv2d", ratio, 2.4),)
    return SuiteReport("layers", {"batch": batch, "channels": channels, "side": side}, tuple(found.values()), claims)


def _other_layers(channels: int) -> dict[str, nn.Module]:
    """Every other convolution of the registry, and orthogonium's."""
    others = [build for name, build in CONVOLUTIONS.items() if name not in ("soc", "standard")]
    built = [build(channels, channels, 3, 1, "zeros", {}) for build in others]
    found: dict[str, nn.Module] = {type(layer).__name__.removesuffix("2d"): layer for layer in built}
    try:
        from orthogonium.layers import AdaptiveOrthoConv2d
        from orthogonium.layers.conv.adaptiveSOC import AdaptiveSOCConv2d
    except ImportError:
        return found
    found["orthogonium AOC"] = AdaptiveOrthoConv2d(channels, channels, 3)
    found["orthogonium SOC"] = AdaptiveSOCConv2d(channels, channels, 3)
    return found


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
