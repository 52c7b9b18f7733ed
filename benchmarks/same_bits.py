"""Claim: a rearrangement changed nothing that is computed: outputs, gradients, radii and a training, to the bit.

What against what: SHA-256 of every result below, from fixed seeds on one thread, against the hashes of an earlier
commit on the same machine. Another processor rounds otherwise, so a record only speaks of the machine it was written
on: on another one, write a record at the earlier commit first.

Run: python benchmarks/same_bits.py --write  (at the earlier commit: writes benchmarks/records/same-bits.json)
     python benchmarks/same_bits.py          (at the later one: compares, and exits with 1 where a hash differs)
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import skewconv
from skewconv import models, ops
from skewconv import nn as layers
from skewconv.records import make_record, read_record, write_record

RECORD = Path(__file__).parent / "records" / "same-bits.json"

# name -> (layer, shape of a batch)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "SOC1d": (lambda: layers.SOC1d(4, 6, 5), (3, 4, 17)),
    "SOC2d": (lambda: layers.SOC2d(4, 6, 3), (3, 4, 9, 8)),
    "SOC2d stride": (lambda: layers.SOC2d(3, 8, 3, 2), (3, 3, 8, 8)),
    "SOC2d narrow": (lambda: layers.SOC2d(8, 3, 3, bias=False), (3, 8, 8, 8)),
    "SOC2d taylor": (lambda: layers.SOC2d(6, 6, 3, series="taylor", train_degree=5, eval_degree=11), (3, 6, 8, 8)),
    "SOC2d circular": (lambda: layers.SOC2d(6, 6, 3, padding_mode="circular"), (3, 6, 8, 8)),
    "SOC2d groups": (lambda: layers.SOC2d(8, 8, 3, groups=2, dilation=2), (3, 8, 9, 9)),
    "SOC2d one pixel": (lambda: layers.SOC2d(32, 32, 3), (4, 32, 1, 1)),
    "SOC2d two pixels": (lambda: layers.SOC2d(64, 64, 3), (8, 64, 2, 2)),
    "SOC2d 64 channels": (lambda: layers.SOC2d(64, 64, 3), (8, 64, 16, 16)),
    "SOC2d dense": (lambda: layers.SOC2d(4, 4, 3, engine="dense"), (3, 4, 6, 6)),
    "SOC2d spectral": (lambda: layers.SOC2d(4, 4, 3, engine="spectral", padding_mode="circular"), (3, 4, 6, 6)),
    "SOC2d series": (lambda: layers.SOC2d(4, 4, 3, engine="series"), (3, 4, 6, 6)),
    "SOC2d recompute": (lambda: layers.SOC2d(4, 4, 3, recompute=True), (3, 4, 6, 6)),
    "SOC3d": (lambda: layers.SOC3d(2, 4, 3), (2, 2, 4, 4, 4)),
    "SUC1d": (lambda: layers.SUC1d(3, 4, 3), (2, 3, 9)),
    "SUC2d": (lambda: layers.SUC2d(3, 4, 3), (2, 3, 6, 6)),
    "SUC3d": (lambda: layers.SUC3d(2, 2, 3), (2, 2, 4, 4, 4)),
    "SOC2d winograd": (lambda: layers.SOC2d(8, 8, 3, engine="winograd"), (3, 8, 8, 8)),
    "SOC2d tracked": (lambda: layers.SOC2d(6, 6, 3, norm="tracked"), (3, 6, 8, 8)),
    "SOCTranspose2d": (lambda: layers.SOCTranspose2d(8, 3, 3, 2), (2, 8, 4, 4)),
    "BCOP2d": (lambda: layers.BCOP2d(4, 6, 3), (3, 4, 8, 8)),
    "BCOP2d stride": (lambda: layers.BCOP2d(4, 6, 3, 2), (3, 4, 8, 8)),
    "Cayley2d": (lambda: layers.Cayley2d(4, 6, 3), (3, 4, 8, 8)),
    "AOL2d": (lambda: layers.AOL2d(4, 6, 3), (3, 4, 8, 8)),
    "AOL2d stride": (lambda: layers.AOL2d(3, 8, 3, 2, padding_mode="circular"), (3, 3, 8, 8)),
    "SLL2d": (lambda: layers.SLL2d(4, 6, 3), (3, 4, 8, 8)),
    "CPL2d": (lambda: layers.CPL2d(4, 4, 3), (3, 4, 8, 8)),
    "OrthogonalLinear": (lambda: layers.OrthogonalLinear(16, 10), (5, 16)),
    "NormalizedLinear": (lambda: layers.NormalizedLinear(16, 10), (5, 16)),
    "MaxMin": (lambda: layers.MaxMin(), (3, 4, 5, 5)),
    "GroupSort": (lambda: layers.GroupSort(), (3, 4, 5, 5)),
    "Householder": (lambda: layers.Householder(4, order=2), (3, 4, 5, 5)),
}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "LipConvnet-5 soc": lambda: models.LipConvnet(5, width=4),
    "LipConvnet-10 soc circular": lambda: models.LipConvnet(10, width=4, padding_mode="circular"),
    "LipConvnet-5 bcop": lambda: models.LipConvnet(5, width=4, conv="bcop", head="normalized"),
    "LipConvnet-5 cayley": lambda: models.LipConvnet(5, width=4, conv="cayley", activation="householder"),
    "ResNet-18 soc": lambda: models.resnet18(conv="soc", width=4),
}

# name -> a small certified network on images (2, 8, 8), one for each kind of layer
CERTIFIED: dict[str, Callable[[], nn.Module]] = {
    "soc": lambda: layers.SOC2d(2, 4, 3),
    "soc circular": lambda: layers.SOC2d(2, 4, 3, padding_mode="circular"),
    "soc taylor groups": lambda: layers.SOC2d(2, 2, 3, groups=2, series="taylor"),
    "soc stride": lambda: layers.SOC2d(2, 8, 3, 2),
    "soc transpose": lambda: layers.SOCTranspose2d(2, 2, 3, 2),
    "bcop": lambda: layers.BCOP2d(2, 4, 3),
    "cayley": lambda: layers.Cayley2d(2, 4, 3),
    "aol": lambda: layers.AOL2d(2, 4, 3),
    "aol circular stride": lambda: layers.AOL2d(2, 4, 3, 2, padding_mode="circular"),
    "sll": lambda: layers.SLL2d(2, 4, 3),
    "cpl": lambda: layers.CPL2d(2, 4, 3),
    "conv": lambda: nn.Conv2d(2, 4, 3, padding=1),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()),
    "average": lambda: nn.AvgPool2d(2),
    "maximum": lambda: nn.MaxPool2d(2),
    "householder": lambda: layers.Householder(2, order=2),
    "sort": lambda: layers.GroupSort(),
}


def digest(*values: Any) -> str:
    """SHA-256 of tensors (their bytes, dtype and shape) and of the repr of everything else."""
    content = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            plain = value.detach().resolve_conj().contiguous().cpu()
            content.update(repr((plain.dtype, tuple(plain.shape))).encode())
            content.update(plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        else:
            content.update(repr(value).encode())
    return content.hexdigest()[:20]


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def of_layers() -> Iterator[tuple[str, str]]:
    for name, (build, shape) in LAYERS.items():
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(0)
            layer = build()
            layer, kind = (layer, torch.complex64) if "SUC" in name else (layer.to(dtype), dtype)
            x = images(*shape, dtype=kind).requires_grad_()
            for mode in ("train", "eval"):
                layer.train(mode == "train")
                layer.zero_grad()
                x.grad = None
                y = layer(x)
                (y * y.detach().conj()).real.sin().sum().backward()
                gradients = [p.grad for p in layer.parameters() if p.grad is not None]
                yield f"{name} {dtype} {mode}", digest(y, x.grad, *gradients)
            if "SUC" not in name:
                yield f"{name} {dtype} bound", digest(layers.lipschitz_upper_bound(layer, shape[1:]))


def of_models() -> Iterator[tuple[str, str]]:
    x, labels = images(6, 3, 32, 32), torch.arange(6) % 10
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model = build()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        yield f"{name} training", digest(loss, *(p.grad for p in model.parameters() if p.grad is not None))
        model.eval().requires_grad_(False)
        logits = model(x)
        yield f"{name} logits", digest(logits)
        yield f"{name} bound", digest(layers.lipschitz_upper_bound(model, (3, 32, 32)))
        if name != "LipConvnet-5 cayley":  # its frozen form may change
            yield f"{name} frozen", digest(skewconv.freeze(model, (3, 32, 32))(x))
        if name.startswith("LipConvnet"):
            yield f"{name} radii", digest(skewconv.certify.radii(model, x, logits.argmax(1)))


def of_programs() -> Iterator[tuple[str, str]]:
    """Logits in float64, bounds and radii of one layer of each kind; frozen; and exported."""
    x, labels = images(4, 2, 8, 8), torch.arange(4) % 3
    for name, build in CERTIFIED.items():
        torch.manual_seed(0)
        middle = build().eval()
        features = middle(torch.zeros(1, 2, 8, 8)).numel()
        parts = (layers.Normalize(0.5, 0.25), middle, layers.MaxMin(), nn.Flatten())
        model = nn.Sequential(*parts, layers.OrthogonalLinear(features, 3)).eval().requires_grad_(False)
        for what, function in (("", model), ("frozen ", skewconv.freeze(model, (2, 8, 8), tol=1e-4))):
            certifier = skewconv.certify.Certifier(function, (2, 8, 8))
            found = certifier(x, labels)
            yield f"certified {what}{name} logits", digest(found.logits, function(x))
            yield f"certified {what}{name} bounds", digest(certifier.lipschitz, *certifier.rounding)
            yield f"certified {what}{name} radii", digest(found.radii, certifier.pair_bounds)
        with tempfile.TemporaryDirectory() as folder:
            for target in ("onnx", "vanilla"):
                file = Path(folder) / f"network{skewconv.export.TARGETS[target].suffix}"
                skewconv.export.export(skewconv.export.TARGETS[target], model, file, (2, 8, 8))
                yield f"exported {target} {name}", digest(*skewconv.export.open_file(file)(x))


def of_functions() -> Iterator[tuple[str, str]]:
    weight = ops.skew_filter(images(6, 6, 3, 3, dtype=torch.float64) - 0.5)
    x = images(2, 6, 7, 7, dtype=torch.float64)
    for method in ("symbol", "gram", "fantastic-four"):
        yield f"norm_upper_bound {method}", digest(ops.norm_upper_bound(weight, method=method))
    bound = float(ops.norm_upper_bound(weight))
    for series in ("taylor", "chebyshev"):
        for degree in (2, 3, 5, 8, 12):
            facts = ops.truncation_error(2.1, degree, series), ops.gain(2.1, degree, series)
            yield f"{series} {degree}", digest(*facts, ops.polynomial(2.1, degree, series).coefficients)
        for padding_mode in ("zeros", "circular"):
            y = ops.conv_exp(x, weight, norm_bound=bound, tol=1e-8, series=series, padding_mode=padding_mode)
            yield f"conv_exp {series} {padding_mode}", digest(y)
    yield "wrap_angles", digest(ops.wrap_angles(weight.flatten(2).sum(2) * 3))


def of_training() -> Iterator[tuple[str, str]]:
    """Two epochs on the digits by the command line, then the weights and the certificates."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["train", "--epochs", "2", "--width", "8", "--out", str(run), "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-m", "skewconv", *words], check=True, env=environment, stdout=subprocess.DEVNULL
        )
        model = skewconv.load(run)
    state = model.state_dict()
    yield "a training on digits, weights", digest(*(state[key] for key in sorted(state)))
    yield (
        "a training on digits, radii",
        digest(skewconv.certify.radii(model, images(20, 1, 8, 8), torch.arange(20) % 10)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Write the record instead of comparing with it.")
    parser.add_argument("--record", type=Path, default=RECORD, help="The record.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = dict([*of_functions(), *of_programs(), *of_layers(), *of_models(), *of_training()])
    if arguments.write:
        write_record(arguments.record, make_record("same-bits", config={"threads": 1}, seed=0, results=found))
        print(f"{len(found)} hashes written")
        return
    expected = read_record(arguments.record)["results"]
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    for name in differing:
        print(f"differs: {name} (recorded {expected.get(name)}, found {found.get(name)})")
    print(f"{len(expected)} hashes recorded, {len(differing)} differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
