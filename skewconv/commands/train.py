"""skewconv train: a run from a recipe or a preset to a folder of its own."""

import itertools
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from skewconv.commands import Json, Quiet, Switch, given, is_the_program, metric_rows, print_json, print_table
from skewconv.config import TrainConfig, require, to_dict
from skewconv.errors import ArgumentError
from skewconv.progress import Progress, clock_time, display_for
from skewconv.train.environment import (
    FILE,
    Hardware,
    emulation_note,
    existing_checkpoint,
    keep_freed_memory,
    make_folder,
)
from skewconv.train.presets import preset, read_config, recipe

if TYPE_CHECKING:
    from skewconv.train.loop import Outcome

_RUNS = Path("runs")


@dataclass(frozen=True)
class Train:
    """Train a network; with no flags at all, a small LipConvnet on handwritten digits, in a minute or two.

    The defaults shown are those of the recipe: of the data, of the preset, of --config, or of the run that is resumed.
    """

    config: Annotated[tyro.conf.OmitArgPrefixes[TrainConfig], tyro.conf.arg(name="")] = field(
        default_factory=lambda: recipe("digits")
    )
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=Hardware)
    out: Path | None = None
    """Folder of the run (none: a new one under runs/)."""
    resume: Switch = False
    """Resume the run in --out from its last checkpoint."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """Settings, which other flags change: folder of a run, JSON or TOML file."""
    print_config: Switch = False
    """Print the settings as JSON, for --config, and train nothing."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints (0: after every step)."""
    quiet: Quiet = False
    json: Json = False

    def __post_init__(self) -> None:
        require(self, "checkpoint_seconds", 0 <= self.checkpoint_seconds < float("inf"), "0 or more")
        if self.resume and self.out is None:
            raise ArgumentError("--resume needs --out: name the run to resume")

    @classmethod
    def defaults(cls, words: Sequence[str]) -> "Train":
        """The recipe, the preset or the stored config that the other flags then change."""
        flags = ("out", "config", "preset", "data")
        out, file, name, data = (next(iter(given(flag, words) or ()), None) for flag in flags)
        if given("resume", words) is not None and out and (Path(out) / FILE).exists():
            from skewconv.train.checkpoint import Checkpoint

            return cls(config=Checkpoint(Path(out) / FILE).header.config)
        if file and name:
            raise ArgumentError(f"--config {file} and --preset {name} are both given: choose one")
        config = read_config(Path(file)) if file else preset(name) if name else recipe(data or "digits")
        epochs, minutes = given("epochs", words), given("minutes", words)
        # Stand-ins: the flags themselves are read, and checked, with all the others.
        if minutes is not None and epochs is None:
            config = replace(config, epochs=None, minutes=1.0)
        if epochs is not None and minutes is None:
            config = replace(config, epochs=1, minutes=None)
        return cls(config=config)

    def run(self) -> int:
        started = time.monotonic()
        if self.print_config:
            print_json(to_dict(self.config))
            return 0
        self._refuse_other_runs()
        with Progress("starting", quiet=self.quiet):
            # All that takes long to load is loaded while this line shows.
            from skewconv.train.session import prepare

            if is_the_program():
                keep_freed_memory()
            session = prepare(self.config, self.hardware)
        first, config = session.fabric.is_global_zero, session.config
        if (config.loading.batch_size, config.epochs) != (self.config.loading.batch_size, self.config.epochs):
            there, size = len(session.splits.train), config.loading.batch_size
            steps = there // size
            length = f", {config.epochs} epochs, {config.epochs * steps:,} optimizer steps" if config.epochs else ""
            if first and not self.quiet:
                print(f"{there:,} training images: batches of {size}{length}", file=sys.stderr)
        if first and not self.quiet and (advice := emulation_note(config, session.fabric.device.type)):
            print(advice, file=sys.stderr)
        folder = session.fabric.broadcast(self._folder() if first else None)
        outcome = session.train(
            folder,
            display=partial(display_for, self.quiet),
            checkpoint_seconds=self.checkpoint_seconds,
            started=started,
        )
        if first:
            self._print(folder, outcome)
        return 0 if outcome.stopped_by is None else 128 + outcome.stopped_by

    def _refuse_other_runs(self) -> None:
        found = self.out is not None and (self.out / FILE).exists()
        if self.config.init is not None and not found:
            existing_checkpoint(self.config.init)
        if found and not self.resume:
            raise ArgumentError(f"{self.out} already holds a run: continue it with --resume, or choose another --out")

    def _folder(self) -> Path:
        model = self.config.model
        depth = f"-{model.depth}" if model.arch == "lipconvnet" else ""
        name = f"{self.config.data.partition(':')[0]}-{model.arch}{depth}-{model.conv}"
        if self.out is not None:
            return make_folder(self.out)
        for count in itertools.count(1):
            with suppress(FileExistsError):
                folder = _RUNS / (name if count == 1 else f"{name}-{count}")
                make_folder(_RUNS)
                folder.mkdir()
                break
        return folder

    def _print(self, folder: Path, outcome: "Outcome") -> None:
        place = shlex.quote(str(folder))
        if outcome.stopped_by is not None:
            again, step = f"skewconv train --resume --out {place}", outcome.position.step
            if self.json:
                print_json({"status": "stopped", "step": step, "run": str(folder), "next": again})
            else:
                print(f"stopped by {outcome.stopped_by.name} after step {step}, and saved. Continue with:\n  {again}")
            return
        assert outcome.record is not None
        if self.json:
            print_json({**outcome.record, "run": str(folder)})
            return
        results = outcome.record["results"]
        epochs = "1 epoch" if results["epochs"] == 1 else f"{results['epochs']:.3g} epochs"
        title = f"{self.config.preset or self.config.data}: {epochs} in {clock_time(results['seconds'])}"
        images = {"test": "test images", "validation": "validation: held-out training images"}[results["split"]]
        print_table(title, metric_rows(images, results))
        print(f"the run   {folder}")
        print(f"look      skewconv report {place}")
        print(f"try it    skewconv explore {place}")
