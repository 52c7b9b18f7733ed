"""Measured comparison with other libraries: the record behind the table of the README.

    pip install -e ".[bench]"
    python benchmarks/neighbours.py

Claim: for every cell of that table that running can decide, the record says what happened here, on a CPU, with which
versions: which layers exist and run, how far each stretches and shrinks (the singular values of its Jacobian on small
images, in float64), which paddings and dimensions it takes, whether it has an inverse, what computes its Lipschitz
constant, and what happens without a GPU. The authors' SOC and LConvNet are no packages: what is said of them was read
in their sources, and is in docs/migrating.md.
"""

import importlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.records import make_record, write_record

RECORD = Path(__file__).parent / "records" / "neighbours.json"
PACKAGES = ("orthogonium", "deel-torchlip")
SIZE, CHANNELS = 6, 4
AOC = "orthogonium.layers.conv.AOC"
SOC = "orthogonium.layers.conv.adaptiveSOC"
LAYERS: dict[str, dict[str, tuple[str, str]]] = {
    "orthogonium": {
        "AdaptiveOrthoConv2d": (AOC, "same"),
        "AdaptiveSOCConv2d": (SOC, "same"),
        "AdaptiveOrthoConvTranspose2d": (AOC, "1"),
        "AdaptiveSOCConvTranspose2d": (SOC, "0"),
        "AOLConv2D": ("orthogonium.layers.conv.AOL", "same"),
        "SDPBasedLipschitzResBlock": ("orthogonium.layers.conv.SLL", ""),
        "RKOConv2d": (AOC, "same"),
    },
    "deel-torchlip": {
        "SpectralConv2d": ("deel.torchlip", "1"),
        "FrobeniusConv2d": ("deel.torchlip", "1"),
        "SpectralConvTranspose2d": ("deel.torchlip", "1"),
    },
}
# Copies of the authors' layers, kept there for comparisons.
LEGACY = {"SOC": "skew_ortho_conv", "BCOP": "block_ortho_conv", "Cayley": "cayley_ortho_conv"}
PADDINGS = ("zeros", "circular", "reflect", "replicate", "symmetric")
ONE_AND_THREE = {
    "orthogonium": ("AdaptiveOrthoConv1d", "AdaptiveOrthoConv3d", "AdaptiveSOCConv1d", "AdaptiveSOCConv3d"),
    "deel-torchlip": ("SpectralConv1d", "SpectralConv3d"),
}


def main() -> None:
    """Run all that is installed, and write the record."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise SystemExit(f"{package} is not installed: pip install '.[bench]'") from None
        found[package] = {"version": version, **examine(package)}
    config = {"size": SIZE, "channels": CHANNELS, "kernel": 3, "padding_modes": PADDINGS}
    record = make_record("neighbours", config=config, seed=0, results=found)
    write_record(RECORD, record)
    for package, facts in found.items():
        print(package, facts["version"])
        for name, value in facts.items():
            if name != "version":
                print(f"  {name}: {value}")


def examine(package: str) -> dict[str, Any]:
    """Every question, asked of one package."""
    layers = {name: outcome(lambda name=name: layer_facts(package, name)) for name in LAYERS[package]}
    first = next(iter(LAYERS[package]))
    return {
        "layers": layers,
        "paddings": {mode: outcome(lambda mode=mode: with_padding(package, first, mode)) for mode in PADDINGS},
        "other_dimensions": {name: has(package, name) for name in ONE_AND_THREE[package]},
        "complex_input": outcome(lambda: complex_input(package, first)),
        "legacy_layers": {name: outcome(lambda name=name: legacy(name)) for name in LEGACY if package == "orthogonium"},
        "radii": outcome(lambda: radii(package)),
        "lipschitz_constant": outcome(lambda: lipschitz_constant(package)),
        "plain_layer_for_inference": outcome(lambda: plain_layer(package)),
        "commands": sorted(
            entry.name
            for entry in importlib.metadata.distribution(package).entry_points
            if entry.group == "console_scripts"
        ),
    }


def outcome(question: Callable[[], Any]) -> Any:
    """The answer, or the error that came in its place."""
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return question()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def built(package: str, name: str, padding_mode: str | None = None) -> nn.Module:
    """A 3 x 3 layer from 4 to 4 channels, in eval mode."""
    module, padding = LAYERS[package][name]
    kind = getattr(importlib.import_module(module), name)
    options: dict[str, Any] = {} if padding_mode is None else {"padding_mode": padding_mode}
    if padding:
        options["padding"] = int(padding) if padding.isdigit() else padding
    if "bias" in inspect.signature(kind).parameters:
        options["bias"] = False
    if name == "SDPBasedLipschitzResBlock":
        layer = kind(cin=CHANNELS, inner_dim_factor=1, kernel_size=3)
    else:
        layer = kind(CHANNELS, CHANNELS, 3, **options)
    # Some iterate their norms once a forward pass, in training only.
    layer.train()
    for _ in range(20):
        layer(torch.randn(2, CHANNELS, SIZE, SIZE))
    return layer.eval()


def layer_facts(package: str, name: str) -> dict[str, Any]:
    """Its range of singular values on small images, what it offers besides forward."""
    layer = built(package, name)
    largest, least = singular_values(layer)
    return {
        "runs": True,
        "largest_singular_value": round(largest, 6),
        "least_singular_value": round(least, 6),
        "inverse": callable(getattr(layer, "inverse", None)),
    }


def singular_values(layer: nn.Module) -> tuple[float, float]:
    """The largest and the least singular value of the Jacobian at a random image."""
    x = torch.randn(1, CHANNELS, SIZE, SIZE)
    jacobian = torch.autograd.functional.jacobian(layer, x)
    assert isinstance(jacobian, Tensor)
    values = torch.linalg.svdvals(jacobian.reshape(-1, x.numel()).double())
    return float(values[0]), float(values[-1])


def with_padding(package: str, name: str, padding_mode: str) -> dict[str, float]:
    """Singular values of the layer with another padding."""
    largest, least = singular_values(built(package, name, padding_mode))
    return {"largest_singular_value": round(largest, 6), "least_singular_value": round(least, 6)}


def has(package: str, name: str) -> bool:
    """True if a name exists in the modules of the layers."""
    modules = {module for module, _ in LAYERS[package].values()}
    return any(hasattr(importlib.import_module(module), name) for module in modules)


def legacy(name: str) -> str:
    """The result of a copy of an authors' layer here."""
    kind = getattr(importlib.import_module(f"orthogonium.legacy.{LEGACY[name]}"), name)
    return str(kind(CHANNELS, CHANNELS, kernel_size=3)(torch.randn(1, CHANNELS, SIZE, SIZE)).dtype)


def complex_input(package: str, name: str) -> str:
    """The result for a complex image."""
    layer = built(package, name)
    return str(layer(torch.randn(1, CHANNELS, SIZE, SIZE, dtype=torch.complex64)).dtype)


def radii(package: str) -> Any:
    """The functions that compute certified radii, called on logits on the CPU."""
    if package == "deel-torchlip":
        names = dir(importlib.import_module("deel.torchlip"))
        return [name for name in names if "cert" in name.lower() or "radi" in name.lower()]
    losses = importlib.import_module("orthogonium.losses")
    found = losses.VRA(torch.randn(3, 5), torch.tensor([0, 1, 2]), last_layer_type="global", return_certs=True)
    return str(found.dtype)


def lipschitz_constant(package: str) -> dict[str, Any]:
    """Their Lipschitz constant of a layer, and the largest singular value of its Jacobian on a small image."""
    if package == "orthogonium":
        sv = importlib.import_module("orthogonium.layers.conv.singular_values")
        layer = built(package, "AdaptiveSOCConv2d")
        value = sv.get_conv_sv(layer, n_iter=6, imsize=SIZE, return_stab_rank=False)
        true = singular_values(layer)[0]
        return {"function": "get_conv_sv", "says": float(value), "dtype": str(value.dtype), "true": true}
    utils = importlib.import_module("deel.torchlip.utils.evaluate_lip_const")
    layer = built(package, "SpectralConv2d")
    says = {
        kind: utils.evaluate_lip_const(layer, torch.randn(2, CHANNELS, SIZE, SIZE), kind)
        for kind in ("jacobian_norm", "noise_norm")
    }
    return {"function": "evaluate_lip_const", "says": says, "true": singular_values(layer)[0]}


def plain_layer(package: str) -> dict[str, Any]:
    """The form of a layer for inference."""
    if package == "orthogonium":
        plain: Any = built(package, "AdaptiveOrthoConv2d")
        return {
            "kind": "nn.Conv2d" if isinstance(plain, nn.Conv2d) else type(plain).__name__,
            "weight": plain.weight.shape,
        }
    layer: Any = built(package, "SpectralConv2d")
    plain = layer.vanilla_export()
    x = torch.randn(1, CHANNELS, SIZE, SIZE)
    return {"kind": f"nn.{type(plain).__name__}", "difference": float((plain(x) - layer(x)).abs().max())}


if __name__ == "__main__":
    main()
