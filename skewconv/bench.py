"""Claims about speed: each is a suite that measures both sides in one process, the proven error beside the time."""

import copy
import itertools
import math
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from skewconv.algorithm_1 import LiteralSOC, literal
from skewconv.frozen import freeze
from skewconv.models import LipConvnet
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import SOC2d
from skewconv.nn.primitives import SkewExponential
from skewconv.nn.soc.skew_conv import TRAIN_TOL
from skewconv.ops import truncation_error
from skewconv.ops.products import LINEAR
from skewconv.ops.series import rms_distance, signed_drift

THREADS = 2
_PAPER = "skewconv, Taylor of degree 5"
_FAST = "skewconv, frozen at 1e-3"


def side_by_side(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 7,
    warmup: int = 2,
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Seconds of each round of every contestant; the fastest is the one that the machine disturbed least.

    Every contestant runs once in each round, so that other programs disturb all of them alike.
    """
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for index in range(warmup + rounds):
            for name, run in contestants.items():
                start = clock()
                run()
                if index >= warmup:
                    seconds[name].append(clock() - start)
    finally:
        torch.set_num_threads(before)
    return {name: tuple(values) for name, values in seconds.items()}


class _Watch(TorchDispatchMode):
    """The bytes of every storage made while active, until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0, 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self._seen and key not in given:
                    self._seen.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._freed, key, size)
        return result

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def peak_bytes(work: Callable[[], object]) -> int:
    """The largest number of bytes that tensors made by ``work`` held at one time."""
    with _Watch() as watch:
        work()
    return watch.peak


@dataclass(frozen=True)
class Entry:
    """A contestant; the proven truncation error is that of a layer in training, and of all layers in inference."""

    name: str
    seconds: float
    rounds: tuple[float, ...]
    peak_bytes: int
    proven_error: float | None
    multiply_adds: int

    def __str__(self) -> str:
        error = "" if self.proven_error is None else f"  error <= {self.proven_error:.1e}"
        time, peak = f"{self.seconds * 1e3:>10.1f} ms", f"{self.peak_bytes / 2**20:>9.0f} MiB"
        return f"  {self.name:<34}{time}{peak}{error}  {self.multiply_adds / 1e9:.1f} G multiply-adds"


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
    suite: str
    config: dict[str, Any]
    entries: tuple[Entry, ...]
    claims: tuple[Claim, ...]

    def __str__(self) -> str:
        head = f"{self.suite}: " + ", ".join(f"{k}={v}" for k, v in self.config.items())
        return "\n".join([head, *map(str, self.entries), *map(str, self.claims)])


def at_least(what: str, figure: float, target: float) -> Claim:
    return Claim(what, figure, f">= {target:g}", figure >= target)


def at_most(what: str, figure: float, target: float) -> Claim:
    return Claim(what, figure, f"<= {target:g}", figure <= target)


def _entries(work: Mapping[str, Callable[[], object]], errors: dict[str, float], rounds: int) -> dict[str, Entry]:
    found = {}
    for name, seconds in side_by_side(work, rounds=rounds, threads=THREADS).items():
        with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
            peak = peak_bytes(work[name])
        operations = counter.get_total_flops() // 2
        found[name] = Entry(name, min(seconds), seconds, peak, errors.get(name), operations)
    return found


# torch's counter knows the products that make new tensors, not those that add to one, nor oneDNN's.
_UNCOUNTED: dict[Any, Callable[..., int]] = {
    **dict.fromkeys(
        (torch.ops.aten.addmm_, torch.ops.aten.baddbmm_),
        lambda target, left, right, *_, **__: 2 * math.prod(left) * int(right[-1]),
    ),
    **({} if LINEAR is None else {LINEAR: lambda x, weight, *_, **__: 2 * math.prod(x) * int(weight[0])}),
}


def _training_step(model: nn.Module, x: Tensor, labels: Tensor, *, mixed: bool = False) -> Callable[[], object]:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed):
            loss = F.cross_entropy(model(x).float(), labels)
        loss.backward()
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
        elif isinstance(module, SkewExponential):
            errors.append(module.polynomial.truncation_error)
    return errors


def training(depth: int, *, batch: int = 128, width: int = 32, rounds: int = 5) -> SuiteReport:
    """A training step of LipConvnet as a user gets it, and with the paper's series, against the literal Algorithm 1.

    Two claims beside the time, on the spectra of filters: 100 layers keep the gradient, and a layer is near evaluation.
    """
    torch.manual_seed(0)
    x, labels = torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))
    ours = LipConvnet(depth, width=width)
    paper = LipConvnet(depth, width=width, conv_options={"series": "taylor", "train_degree": 5})
    ours(x[:1])  # the first pass finds the norms
    polynomials = [layer.polynomial(training=True) for layer in ours.modules() if isinstance(layer, SOC2d)]
    drift = max(abs(signed_drift(p, p.norm_bound)) for p in polynomials)
    distance = max(rms_distance(p, p.norm_bound) for p in polynomials)
    models = {"skewconv": ours, _PAPER: paper, "Algorithm 1": literal(copy.deepcopy(ours))}
    errors = {name: max(_errors(model, training=True)) for name, model in models.items()}
    found = _entries({name: _training_step(model, x, labels) for name, model in models.items()}, errors, rounds)
    ratio = found["Algorithm 1"].seconds / found["skewconv"].seconds
    claims = (
        at_least(f"LipConvnet-{depth} training step, Algorithm 1 / skewconv", ratio, 7.0 if depth == 5 else 4.0),
        at_most("|log| of the gain of 100 layers", 100 * drift, 0.1),
        at_most("rms distance of a layer from evaluation", distance, TRAIN_TOL),
    )
    return SuiteReport(f"training-{depth}", {"batch": batch, "width": width}, tuple(found.values()), claims)


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
    # BCOP is circular always; it stands beside both, as the paper compares it with SOC of zero padding.
    models["BCOP, frozen"] = freeze(LipConvnet(5, width=width, conv="bcop").eval(), (3, 32, 32))
    work = {name: torch.inference_mode()(partial(each.eval(), x)) for name, each in models.items()}
    found = _entries(work, errors, rounds)
    ours, theirs, fast = (found[name].seconds for name in ("skewconv, frozen", "Algorithm 1", _FAST))
    speedup, fast_speedup = f"{padding_mode} padding, Algorithm 1 / frozen", theirs / fast
    claims = [
        at_least(f"inference, {speedup}", theirs / ours, 60.0 if circular else 6.0),
        at_most("proven error, frozen / Algorithm 1", errors["skewconv, frozen"] / errors["Algorithm 1"], 1.0),
        at_least(f"certified inference, {speedup} at 1e-3", fast_speedup, 60.0 if circular else 12.0),
    ]
    beside, other = f"{padding_mode} padding, frozen SOC / frozen BCOP", found["BCOP, frozen"].seconds
    claims += [
        at_most(beside, ours / other, 0.2 if circular else 2.0),
        at_most(f"{beside}, at 1e-3", fast / other, 0.2 if circular else 1.0),
    ]
    config = {"batch": batch, "width": width, "padding_mode": padding_mode}
    return SuiteReport(f"inference-{padding_mode}", config, tuple(found.values()), tuple(claims))


def beside_bcop(
    *, depths: tuple[int, ...] = (5, 20, 40), batch: int = 128, width: int = 8, rounds: int = 5
) -> SuiteReport:
    """A training step of a narrow LipConvnet with SOC, of both paddings, against BCOP: float32, mixed precision.

    BCOP's padding is circular.
    """
    torch.manual_seed(0)
    x, labels = torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))
    entries, claims = [], []
    for depth, mixed in itertools.product(depths, (False, True)):
        what = f"LipConvnet-{depth} training step at width {width}, {'bfloat16' if mixed else 'float32'}"
        models = {
            "SOC": LipConvnet(depth, width=width),
            "SOC, circular padding": LipConvnet(depth, width=width, padding_mode="circular"),
            "BCOP": LipConvnet(depth, width=width, conv="bcop"),
        }
        steps = {f"{name}, {what}": _training_step(model, x, labels, mixed=mixed) for name, model in models.items()}
        found = list(_entries(steps, {}, rounds).values())
        entries += found
        for name, entry in zip(("SOC", "SOC with circular padding"), found, strict=False):
            claims.append(at_most(f"{what}, {name} / BCOP", entry.seconds / found[-1].seconds, 1.0))
    return SuiteReport("beside-bcop", {"batch": batch, "width": width}, tuple(entries), tuple(claims))


def layers(*, batch: int = 128, channels: int = 64, side: int = 16, rounds: int = 5) -> SuiteReport:
    """One layer of each kind inside a network: this library's, nn.Conv2d, and orthogonium's where it is installed.

    BCOP, Cayley and orthogonium's layers have circular padding, the others zeros unless they say so.
    """
    torch.manual_seed(0)
    x = torch.randn(batch, channels, side, side, requires_grad=True)
    soc = SOC2d(channels, channels, 3)
    soc(x[:1].detach())  # the first pass finds the norm
    proven: dict[str, nn.Module] = {
        "SOC": soc,
        "SOC, circular": SOC2d(channels, channels, 3, padding_mode="circular"),
        "Algorithm 1": LiteralSOC(soc),
    }
    contestants = {**proven, "nn.Conv2d": nn.Conv2d(channels, channels, 3, padding=1), **_other_layers(channels)}

    def step(layer: nn.Module) -> Callable[[], object]:
        return lambda: layer(x).square().mean().backward()

    errors = {name: max(_errors(layer, training=True)) for name, layer in proven.items()}
    found = _entries({name: step(layer) for name, layer in contestants.items()}, errors, rounds)
    ratio = found["SOC"].seconds / found["nn.Conv2d"].seconds
    claims = (at_most(f"one layer, {channels} channels at {side}x{side}, training, SOC / nn.Conv2d", ratio, 2.4),)
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
    "beside-bcop": beside_bcop,
    "layers": layers,
}
