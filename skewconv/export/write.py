"""From a model to a file that was checked before it was put in place."""

import copy
import hashlib
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata as packages
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from skewconv._version import __version__
from skewconv.certify import Certifier, weights_hash
from skewconv.certify.float32 import Float32Slack
from skewconv.checks import check_positive
from skewconv.choices import StoredWeights
from skewconv.errors import ArgumentError, ExportError, UnboundedModuleError
from skewconv.export.check import Agreement, agreement, expected, measured_slack, radius_rule
from skewconv.export.onnx_target import OnnxTarget
from skewconv.export.plain import Network, Radius, plain_of
from skewconv.export.target import ExportedFile, FileOptions, Target, TorchExportTarget, VanillaTarget
from skewconv.frozen import FrozenModel
from skewconv.nn.gains import gain_bounds
from skewconv.nn.lowering import Chooser, Offers, lower
from skewconv.nn.module_tools import for_inference, unwrapped
from skewconv.nn.primitives import Choice, Dense, Primitive, ResidualStep, SkewExponential, Spectral
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.ops.polynomials import polynomial
from skewconv.progress import Tick
from skewconv.records import atomic_write

#: where a network can be exported to, by the word of the command line
TARGETS: dict[str, Target] = {target.name: target for target in (OnnxTarget(), TorchExportTarget(), VanillaTarget())}
DEFAULT_TOL = 1e-3
#: without a limit of the user's, layers take smaller forms until a file stores this multiple of the trained numbers,
MOST_PER_PARAMETER = 2
#: but only while all layers together take less than this multiple of the fastest forms' time
WORTH_IT = 2.0
#: the model card, beside the files: a section for each of them
CARD = "MODEL.md"


@dataclass(frozen=True)
class LayerRow:
    """One layer: its name in the model, its form in words, its stored numbers, its multiply-adds for one image."""

    layer: str
    form: str
    numbers: int
    multiply_adds: int


@dataclass(frozen=True)
class Export:
    """An exported network: its files, their layers and metadata, their agreement with the model on the images.

    ``frozen`` is the same function in PyTorch: the model that was certified.
    """

    files: tuple[Path, ...]
    rows: tuple[LayerRow, ...]
    metadata: dict[str, Any]
    agreement: Agreement
    frozen: FrozenModel


def export(
    target: Target,
    model: nn.Module,
    path: str | Path,
    input_shape: Sequence[int],
    labels: Sequence[str] | None = None,
    *,
    images: Tensor | None = None,
    tol: float = DEFAULT_TOL,
    weights: StoredWeights = "float32",
    max_mb: float | None = None,
    radius: bool = True,
    preprocess: bool = False,
    accuracy: Mapping[str, Any] | None = None,
    progress: Tick | None = None,
) -> Export:
    """Freeze a model, write it for a target, run the file, and put it in place if it does what it should.

    The facts of its metadata are also written into ``MODEL.md`` beside it, in a section of its own.

    Args:
        target: the kind of file.
        model: images in [0, 1] to logits; frozen models are taken as they are.
        path: of the file; it is written atomically, and not at all if a check fails.
        input_shape: (channels, height, width) of the images; the batch may have any size.
        labels: the names of the classes.
        images: (n, *input_shape), to check the file and to measure its float32 slack; random ones by default.
        tol: the largest difference of the logits from the model's, relative to the activations' norms.
        weights: what is stored; with float16 the rounded function is certified, and still computed in float32.
        max_mb: largest size of the file, in millions of bytes; see :func:`within_budget` for the default.
        radius: give the certified radius of each prediction too.
        preprocess: the ONNX file takes pictures (n, height, width, channels) of any size in uint8, and resizes and
            crops them as Pillow does; radii are about the pixels in [0, 1] that this gives.
        accuracy: figures of the model, for the metadata.
        progress: called as images are run.
    """
    place, shape = Path(path), tuple(input_shape)
    options = FileOptions(weights == "float16", preprocess)
    if place.suffix != target.suffix:
        raise ArgumentError(f"a file of {target.name} ends in {target.suffix}, got {place.name!r}")
    if not place.parent.is_dir():
        raise ArgumentError(f"{place.parent} is not a folder: create it first")
    if weights not in get_args(StoredWeights):
        raise ArgumentError(f"weights must be 'float32' or 'float16', got {weights!r}")
    if max_mb is not None:
        check_positive(max_mb, "max_mb")
    target.check(options)
    tol, shown = check_positive(tol, "tol"), _shown_images(images, shape)
    if preprocess:
        shown = _pictures(shown, shape).permute(0, 3, 1, 2).float() / 255
    original = for_inference(copy.deepcopy(unwrapped(model)).cpu().float())
    frozen = _frozen(original, shape, tol, options, max_mb)
    try:
        certifier = Certifier(frozen, shape) if radius else None
    except UnboundedModuleError as error:
        raise ExportError(f"{error}; or export the logits alone, with --no-radius") from error
    layers = plain_of(frozen.model)
    rows = tuple(_layer_rows(layers, frozen))
    wanted = expected(original, frozen, certifier, shown, progress)
    facts = _facts(model, frozen, labels, options) | (
        {} if accuracy is None else {"accuracy_of_the_trained_network": dict(accuracy)}
    )
    with tempfile.TemporaryDirectory() as folder:
        slack, rule = None, None
        if certifier is not None:
            largest = max(float(batch.radii.max()) for batch in wanted)
            if images is not None and largest < 1 / 255:
                raise ExportError(
                    f"this model cannot be certified: its proven Lipschitz bound is {certifier.lipschitz:.3g}, and no "
                    "image has a radius of 1/255, the shortest step between two images of 8 bits (the largest is "
                    f"{largest:.2g}); export the logits alone, with --no-radius"
                )
            draft = Path(folder) / f"draft{target.suffix}"
            target.write(Network(layers, None, shape), {}, draft, replace(options, preprocess=False))
            slack = measured_slack(target.read(draft).runner, frozen, certifier, wanted)
            rule = radius_rule(certifier, slack)
            facts |= _radius_facts(certifier, slack, rule)
            facts["float32_slack"]["random_images"] = images is None
        final = Path(folder) / place.name
        written = target.write(Network(layers, rule, shape).eval(), facts, final, options)
        allowed = frozen.tol + (2.0**-11 * len(rows) if options.half else 0.0)
        runner = target.read(final).runner
        run = (lambda batch: runner(_pictures(batch, shape))) if preprocess else runner
        agrees = agreement(run, wanted, allowed, certifier, slack)
        size = sum(file.stat().st_size for file in written)
        if max_mb is not None and size > max_mb * 1e6:
            raise ExportError(
                f"the file has {size / 1e6:.2f} MB, more than the {max_mb:g} asked for, its operators and metadata "
                "included; raise --max-mb a little; no file was written"
            )
        for file in written:
            atomic_write(place.with_name(file.name), file.read_bytes())
    files = tuple(place.with_name(file.name) for file in written)
    _write_card(place.with_name(CARD), place, facts, agrees)
    return Export(files, rows, facts, agrees, frozen)


def onnx(
    model: nn.Module, path: str | Path, input_shape: Sequence[int], labels: Sequence[str] | None = None, **options: Any
) -> Export:
    """An ONNX file of standard operators: input ``images`` in [0, 1], outputs ``logits`` and ``radius``.

    Args:
        model, path, input_shape, labels, options: see :func:`export`.
    """
    return export(TARGETS["onnx"], model, path, input_shape, labels, **options)


def open_file(path: str | Path) -> ExportedFile:
    """An exported file, checked to be whole: call it with images, or read its metadata.

    Args:
        path: FILE.onnx, FILE.pt2 or FILE.py; the last is Python, and is executed.
    """
    place = Path(path)
    target = next((each for each in TARGETS.values() if each.suffix == place.suffix), None)
    if target is None:
        known = ", ".join(each.suffix for each in TARGETS.values())
        raise ArgumentError(f"{place.name} is no exported file: their names end in {known}")
    if not place.is_file():
        raise ExportError(f"{place} does not exist")
    found = target.read(place)
    if "input_shape" not in found.metadata:
        raise ExportError(f"{place} has no metadata: it was not exported by this library")
    return found


def _shown_images(images: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    if images is None:
        return torch.rand(256, *shape, generator=torch.Generator().manual_seed(0))
    if tuple(images.shape[1:]) != shape or len(images) == 0 or not images.is_floating_point():
        raise ArgumentError(f"images must be floating, of shape (n, {shape}), got {images.dtype} {tuple(images.shape)}")
    return images.detach().to("cpu", torch.float32)


def _frozen(
    model: nn.Module, shape: tuple[int, ...], tol: float, options: FileOptions, max_mb: float | None
) -> FrozenModel:
    if not isinstance(model, FrozenModel):
        parameters = sum(parameter.numel() for parameter in model.parameters())
        # Operators, shapes and metadata take about 50,000 bytes.
        numbers = None if max_mb is None else max(0.0, max_mb * 1e6 - 50_000) / (2 if options.half else 4)
        # The caller's copy, of which norms are then proven that it needs itself.
        lowered = lower(model, shape, tol, choose=within_budget(parameters, numbers))
        model = FrozenModel(lowered, shape, tol)
    return in_half_precision(model) if options.half else model


def _layer_rows(layers: nn.Module, frozen: FrozenModel) -> Sequence[LayerRow]:
    """A row for each layer of the frozen model that stores numbers; its plain form has the same name."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layers(torch.zeros(1, *frozen.input_shape))
    counts, rows = counter.get_flop_counts(), []
    for name, module in frozen.model.named_modules():
        numbers = sum(tensor.numel() for tensor in layers.get_submodule(name).state_dict().values())
        if numbers and not any(module.children()):
            path = ".".join(part for part in (type(layers).__name__, name) if part)
            rows.append(LayerRow(name, _form(module), numbers, sum(counts.get(path, {}).values()) // 2))
    return rows


def _form(module: nn.Module) -> str:
    match module:
        case nn.Linear() | Dense():
            return f"matrix {' x '.join(map(str, module.weight.shape))}"
        case SkewExponential():
            return f"chain of {module.polynomial.degree} convolutions"
        case Spectral():
            return f"{(len(module.real_weight) + len(module.weight)) // module.groups} frequencies"
        case ResidualStep():
            return "two convolutions"
        case nn.Conv2d() | Primitive():
            return f"convolution {' x '.join(map(str, module.weight.shape[2:]))}"
    return type(module).__name__


def _facts(model: nn.Module, frozen: FrozenModel, labels: Sequence[str] | None, options: FileOptions) -> dict[str, Any]:
    """The metadata of a file, but for its radii and figures."""
    libraries = {name: packages.version(name) for name in ("torch", "numpy")}
    images = f"images (batch, {', '.join(map(str, frozen.input_shape))}), float32, from 0 to 1"
    pictures = f"pictures (batch, height, width, {frozen.input_shape[0]}), uint8, of any size"
    return {
        "labels": None if labels is None else list(labels),
        "input": pictures if options.preprocess else images,
        "input_shape": list(frozen.input_shape),
        "input_range": [0.0, 1.0],
        "preprocessing": _preprocessing(frozen.input_shape, options.preprocess),
        "outputs": "logits (batch, classes), float32",
        "tolerance": frozen.tol,
        "compared_with_the_trained_network": (
            "This file is a function of its own, certified itself. Its logits are those of the trained network (which "
            "skewconv predict runs) within the tolerance, relative to the largest activation, and radii differ "
            "accordingly: by about sqrt(2) times the difference of the logits, divided by the Lipschitz bound, in "
            "both directions. A radius of this file holds for this file."
        ),
        "weights": "float16" if options.half else "float32",
        "weights_sha256": weights_hash(model),
        "versions": {"skewconv": __version__, "python": platform.python_version(), **libraries},
    }


def _radius_facts(certifier: Certifier, slack: Float32Slack, rule: Radius) -> dict[str, Any]:
    return {
        "outputs": "logits (batch, classes), radius (batch,), float32",
        "radius": (
            "l2 distance within which no image has another class, in units of pixels from 0 to 1: one grey level of "
            "one pixel is 1/255 = 0.0039"
        ),
        "radius_rule": (
            "min over i of (f_t - f_i - s) / K_ti for logits f and the predicted class t: s is subtracted_from_margins "
            "(for rounding: see float32_slack), K_ti the proven Lipschitz constant of f_t - f_i; 0 where nothing is "
            "proven, and for images outside of [0, 1]"
        ),
        "lipschitz_upper_bound": certifier.lipschitz,
        "float32_slack": {**asdict(slack), "in_words": slack.in_words()},
        "subtracted_from_margins": float(rule.subtracted),
    }


def _write_card(card: Path, file: Path, facts: Mapping[str, Any], agrees: Agreement) -> None:
    """Put a section on the file into the model card, in the place of an older one; the rest of the card stays."""
    rows = {
        **facts,
        "checked_on": f"{agrees.images:,} images: largest difference of a logit from the trained network "
        f"{agrees.largest_difference:.2g}, {agrees.other_classes} of another class",
        "sha256_of_the_file": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    lines = [f"| {name.replace('_', ' ')} | {_in_words(value)} |" for name, value in rows.items() if value is not None]
    begin, end = f"<!-- {file.name} -->", f"<!-- end of {file.name} -->"
    section = "\n".join([begin, f"# {file.name}", "", "| | |", "| --- | --- |", *lines, end, ""])
    own = rf"{re.escape(begin)}.*?{re.escape(end)}\n".encode()
    others = re.sub(own, b"", card.read_bytes() if card.is_file() else b"", flags=re.DOTALL)
    atomic_write(card, others + section.encode())


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name.replace('_', ' ')}: {_in_words(each)}" for name, each in value.items())
    words = ", ".join(map(_in_words, value)) if isinstance(value, list) else str(value)
    return words.replace("|", "\\|").replace("\n", " ")


def _preprocessing(shape: tuple[int, ...], inside: bool) -> str:
    if len(shape) != 3:
        return "none: inputs are numbers from 0 to 1"
    channels, height, width = shape
    before = (
        "turned upright by EXIF; grey of 16 bits divided by 257 and rounded; transparency composed on white; converted "
        f"to {'L' if channels == 1 else 'RGB'} of 8 bits"
    )
    after = (
        f"PIL.ImageOps.fit(picture, ({width}, {height}), PIL.Image.Resampling.BICUBIC), which resizes by the shorter "
        "side and crops the centre (order of the passes as in Pillow 13); channels first; divided by 255"
    )
    return f"before the file: {before}. In the file: {after}" if inside else f"{before}; {after}"


def _pictures(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(n, c, h, w) in [0, 1] as pictures (n, h, w, c) of 8 bits."""
    if len(shape) != 3:
        raise ArgumentError(f"--preprocess is for pictures, of shape (channels, height, width), not {shape}")
    return (255 * images).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def within_budget(parameters: int, most_numbers: float | None = None) -> Chooser:
    """A chooser for :func:`skewconv.freeze`: the fastest forms that fit.

    Each layer begins with its fastest form. While all together are too large, the layer that saves most numbers for
    the multiply-adds it costs takes a smaller one.

    Args:
        parameters: number of trained numbers.
        most_numbers: largest number that all layers together may store; by default twice the parameters, or as near to
            that as the network comes without taking twice the multiply-adds of the fastest forms.
    """

    def choose(offers: Offers, fixed: int) -> Mapping[str, Choice]:
        chosen = {name: choices[0] for name, choices in offers.items()}
        room = (MOST_PER_PARAMETER * parameters if most_numbers is None else most_numbers) - fixed
        longest = WORTH_IT * sum(choice.cost for choice in chosen.values())
        while (numbers := sum(choice.numbers for choice in chosen.values())) > room:
            smaller = [
                ((other.cost - now.cost) / (now.numbers - other.numbers), name, other)
                for name, now in chosen.items()
                for other in offers[name]
                if other.numbers < now.numbers
            ]
            if not smaller and most_numbers is not None:
                raise ExportError(
                    f"the smallest forms of all layers hold {numbers + fixed:,} numbers, and the size allows "
                    f"{int(most_numbers):,}: raise --max-mb, store --weights float16, or train a smaller network"
                )
            after = {**chosen, **{name: other for _, name, other in sorted(smaller, key=lambda each: each[:2])[:1]}}
            if not smaller or (most_numbers is None and sum(choice.cost for choice in after.values()) > longest):
                break
            chosen = after
        return chosen

    return choose


def in_half_precision(frozen: FrozenModel) -> FrozenModel:
    """The model with each weight rounded to float16, and still computing in float32: another function, proven itself.

    Filters, matrices and matrices of frequencies are rounded. What is small stays as it is: biases, angles, the
    transforms, the mean and deviation of the images.
    """
    model = copy.deepcopy(frozen.model)
    for name, module in list(model.named_modules()):
        if isinstance(module, Primitive):
            module.weight = _rounded(module.weight, name)
            if isinstance(module, Spectral):
                module.real_weight = _rounded(module.real_weight, name)
            if isinstance(module, SkewExponential):
                _widen_interval(module)
            gain_bounds(module)
        elif isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            module.weight.data = _rounded(module.weight.data, name)
    return FrozenModel(model, frozen.input_shape, frozen.tol)


def _rounded(weight: Tensor, name: str) -> Tensor:
    half = weight.detach().to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        largest = torch.finfo(torch.float16).max
        raise ExportError(f"'{name}' has weights beyond {largest:g}, which float16 cannot hold: store them in float32")
    return half.to(weight.dtype)


def _widen_interval(module: SkewExponential) -> None:
    """Where the filter is larger than before, the polynomial's interval grows."""
    g, old = module.geometry, module.polynomial
    norm = norm_upper_bound_at(module.weight, module.image_size, g.padding_mode, dilation=g.dilation, groups=g.groups)
    if norm > old.norm_bound:
        # Another proof of the same norm, by other means, shall find it in the interval too.
        wider = polynomial(norm * (1 + 1e-9), old.degree, old.series)
        module.polynomial = wider.non_expansive() if old.gain[1] <= 1 else wider
