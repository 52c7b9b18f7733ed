"""How far what is known of one thing is spread: modules that name a layer, files that a pass or a command crosses.

Reads the checkout it is run in, so that two commits can be compared. Prints one table, and with --json the lists.

Run: python benchmarks/house.py
"""

import argparse
import contextlib
import importlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import skewconv
from skewconv import certify, cli, export, models
from skewconv import nn as layers

PACKAGE = Path(skewconv.__file__).parent


def modules_that_name(word: str) -> list[str]:
    """The package's files in which the word stands, anywhere."""
    found = (path for path in PACKAGE.rglob("*.py") if re.search(rf"\b{word}\b", path.read_text()))
    return sorted(str(path.relative_to(PACKAGE)) for path in found)


def files_crossed(work: Callable[[], object]) -> list[str]:
    """The package's files of which a function runs during the work."""
    seen: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            seen.add(str(Path(frame.f_code.co_filename).relative_to(PACKAGE)))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return sorted(seen)


def passes() -> dict[str, list[str]]:
    """The files crossed by a forward pass of SOC2d, the first in each mode and a later one, and by the walks."""
    layer, x = layers.SOC2d(8, 8, 3), torch.rand(2, 8, 8, 8)
    crossed = {}
    for mode in ("training", "evaluation"):
        layer.train(mode == "training")
        crossed[f"first forward in {mode}"] = files_crossed(lambda: layer(x))
        crossed[f"later forward in {mode}"] = files_crossed(lambda: layer(x))
    return crossed | walks()


def walks() -> dict[str, list[str]]:
    """The files crossed by a tiny training run, a certificate, its check, freezing and an export of a small network."""
    torch.manual_seed(0)
    model, images = models.LipConvnet(5, in_channels=1, input_size=8, width=4).eval(), torch.rand(8, 1, 8, 8)
    labels = model(images).argmax(1)
    with tempfile.TemporaryDirectory() as folder:
        words = f"train --epochs 1 --width 2 --eval-batch-size 120 --quiet --json --out {folder}/run"
        with contextlib.redirect_stdout(io.StringIO()):
            # Modules are loaded by a first command, so that a file counts for what runs of it, not for its import.
            cli.main([*words.split(), "--print-config"])
            importlib.import_module("skewconv.train.session")
            crossed = {"train": files_crossed(lambda: cli.main(words.split()))}
        return crossed | {
            "certify": files_crossed(lambda: certify.certify_dataset(model, images, labels).write(folder)),
            "check": files_crossed(lambda: certify.check_certificates(folder, model, images, labels)),
            "freeze": files_crossed(lambda: skewconv.freeze(model, (1, 8, 8))),
            "export": files_crossed(lambda: export.onnx(model, Path(folder) / "model.onnx", (1, 8, 8))),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="Print the lists of files as JSON.")
    arguments = parser.parse_args()
    names = sorted(name for name in layers.__all__ if isinstance(getattr(layers, name), type))
    found = {f"named: {name}": modules_that_name(name) for name in names} | passes()
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for what, files in found.items():
        print(f"{what:36} {len(files):3}  {' '.join(files) if what == 'named: BCOP2d' else ''}".rstrip())


if __name__ == "__main__":
    main()
