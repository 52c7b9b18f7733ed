"""Training in Python: a config and images in, a trained and judged network out."""

import os
import tempfile
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from skewconv.config import TrainConfig
from skewconv.errors import ArgumentError
from skewconv.train.build import Parts, load_data, prepared
from skewconv.train.config_file import describe_run
from skewconv.train.data import Dataset, dataset_from_arrays
from skewconv.train.evaluate import Figures, evaluate
from skewconv.train.go_on import checkpoint_of, sole_writer
from skewconv.train.hardware import Hardware
from skewconv.train.loop import Trainer
from skewconv.train.places import FILE
from skewconv.train.progress import Silent, display_for


@dataclass(frozen=True)
class Fitted:
    """What :func:`fit` returns.

    Attributes:
        model: the trained network in eval mode, on the CPU: images in [0, 1] to logits.
        config: all that the run was told.
        record: its results, as in the record.json of a run; ``record["results"]`` has ``clean`` and ``certified``.
        images: what it was trained on and judged by.
        path: the folder of the run; None if it was kept nowhere.
    """

    model: nn.Module
    config: TrainConfig
    record: dict[str, Any]
    images: Parts
    path: Path | None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.images.data.image_shape

    def evaluate(self, images: int | None = None) -> Figures:
        """Clean and certified accuracy on the images kept for judging, or on so many of them, with proofs."""
        return evaluate(self.model, self.images.judged, self.config, images=images)


def fit(
    config: TrainConfig,
    data: Dataset | tuple[Any, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    quiet: bool = True,
    hardware: Hardware | None = None,
    checkpoint_seconds: float = 60.0,
) -> Fitted:
    """Train a network and judge it, as ``skewconv train`` does.

    >>> from skewconv.train import fit, recipe
    >>> run = fit(recipe("digits", epochs=1, width=2, eval_batch_size=120))
    >>> run.record["results"]["status"], run.evaluate(images=10).images
    ('finished', 10)

    Args:
        config: such as ``recipe("cifar10", minutes=20)``, ``preset("lipconvnet-5/soc/cifar10")`` or a ``TrainConfig``.
        data: images in memory in place of those that the config names: (train, test), each (images, labels) or a
            dataset of PyTorch with items (image, label), see :func:`skewconv.train.data.dataset_from_arrays`; or what
            that function or ``load_dataset`` gave.
        out: a folder for checkpoints, logs and the record, which every command takes; by default nothing is kept.
        resume: go on with the run in ``out``, if there is one.
        quiet: show no progress.
        hardware: devices and processes; by default a GPU if there is one.
        checkpoint_seconds: the time between checkpoints.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM. The run in ``out`` is saved, and ``resume=True`` goes on.
    """
    if resume and out is None:
        raise ArgumentError("resume=True needs out: which run shall go on?")
    if data is None:
        dataset = load_data(config)
    else:
        dataset = data if isinstance(data, Dataset) else dataset_from_arrays(*data)
        config = config if dataset.name == config.data else replace(config, data=dataset.name)
    machines = hardware or Hardware()
    config, images = prepared(config, dataset, machines.processes)
    fabric = machines.fabric(config)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as place:
        folder = Path(place)
        if (folder / FILE).exists() and not resume:
            raise ArgumentError(f"{folder} already holds a run: go on with resume=True, or choose another folder")
        with sole_writer(folder, fabric):
            checkpoint = checkpoint_of(folder, config, may_be_longer=True)
            if fabric.is_global_zero:
                describe_run(folder, config)
            options: dict[str, Any] = {"checkpoint": checkpoint, "checkpoint_seconds": checkpoint_seconds}
            with closing(display_for(quiet) if fabric.is_global_zero else Silent()) as display:
                trainer = Trainer(config, fabric, folder, images, display=display, **options)
                outcome = trainer.fit()
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt(f"training was stopped by {outcome.stopped_by.name} after step {outcome.position.step}")
    assert outcome.record is not None
    model = trainer.stepper.judged.cpu().eval()
    return Fitted(model, config, outcome.record, images, None if out is None else folder)
