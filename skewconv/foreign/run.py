"""An imported network as a run: a folder that the other commands accept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from skewconv._version import __version__
from skewconv.choices import FOLDER
from skewconv.config import LoadingConfig, TrainConfig, to_dict
from skewconv.errors import ArgumentError
from skewconv.foreign.layers import ForeignWeightsError
from skewconv.foreign.network import MEAN, SIZE, STD, ImportedNetwork
from skewconv.records import atomic_write, make_record, write_record
from skewconv.train.build import DataFacts
from skewconv.train.checkpoint import Header, Position, save
from skewconv.train.data import Dataset
from skewconv.train.paths import CONFIG, FILE, README, RECORD
from skewconv.train.presets import recipe


def run_config(imported: ImportedNetwork, data: str | None, source: str | None) -> TrainConfig:
    """The config of the run: the network, the data (default: CIFAR-10 or CIFAR-100), else the recipe for that data."""
    classes = imported.layout.num_classes
    name = data or {10: "cifar10", 100: "cifar100"}.get(classes)
    if name is None:
        raise ArgumentError(
            f"the network has {classes} classes, neither 10 nor 100: give --data, cifar10 or folder:PATH"
        )
    loading = LoadingConfig(source=source, size=SIZE if name.startswith(FOLDER) else None)
    return replace(recipe(name), model=imported.config, loading=loading)


def write_run(imported: ImportedNetwork, config: TrainConfig, data: Dataset, folder: Path) -> dict[str, Any]:
    """Write the checkpoint (in float32), the record, the config and a README into a new folder; return the record."""
    facts, layout = DataFacts.of(data), imported.layout
    if facts.image_shape != (3, SIZE, SIZE) or len(facts.classes) != layout.num_classes:
        raise ForeignWeightsError(
            f"the network takes images (3, {SIZE}, {SIZE}) and has {layout.num_classes} classes, but {facts.name} has "
            f"images {facts.image_shape} and {len(facts.classes)} classes: give the --data that it was trained on"
        )
    if (folder / FILE).exists():
        raise ArgumentError(f"{folder} already holds a run: choose another --out")
    results = {
        "status": "imported",
        "layout": f"LipConvNet of the SOC authors' code of {layout.year}",
        "normalisation": {"mean": MEAN, "std": STD},
        "notes": imported.notes,
    }
    record = make_record("import", config=to_dict(config), seed=None, results=results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"the folder {folder} cannot be made: {error.strerror}: choose another --out") from error
    text = f"A network of other code ({results['layout']}), taken over by `skewconv import`, version {__version__}.\n"
    atomic_write(folder / README, text.encode())
    atomic_write(folder / CONFIG, (json.dumps(to_dict(config), indent=2) + "\n").encode())
    write_record(folder / RECORD, record)
    # Last, as its presence makes the folder a run.
    save(folder / FILE, Header(config, facts, Position(finished=True), record), imported.model.float())
    return record
