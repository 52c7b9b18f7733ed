"""skewconv train: a network from a recipe, in a folder of its own."""

import contextlib
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from skewconv.commands import is_the_program, print_json, program
from skewconv.commands.figures import print_figures
from skewconv.commands.flags import Json, Quiet, Switch
from skewconv.commands.presets import list_presets, paper_rows
from skewconv.config import TrainConfig, to_dict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.fields import require, require_at_least
from skewconv.progress import Progress, clock_time
from skewconv.train.budget import closing_seconds, process_age
from skewconv.train.config_file import describe_run, read_config
from skewconv.train.freed_memory import keep_freed_memory
from skewconv.train.hardware import Hardware
from skewconv.train.places import FILE, SEEDS, existing_checkpoint
from skewconv.train.presets import preset, recipe
from skewconv.train.progress import Silent, display_for

if TYPE_CHECKING:
    from skewconv.train.build import Parts
    from skewconv.train.outcome import Outcome
    from skewconv.train.seeds import SeedRuns

_RUNS = Path("runs")


@dataclass(frozen=True)
class Peek:
    """The flags on which the defaults of the others depend."""

    config: Path | None = None
    data: str | None = None
    preset: str | None = None
    epochs: str | None = None
    minutes: str | None = None
    out: Path | None = None
    resume: bool = False


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
    """The run lies in this folder: by default in a new one under runs/."""
    resume: Switch = False
    """The run in --out goes on from its last checkpoint; with larger --epochs or --minutes it is extended."""
    seeds: int = 1
    """So many runs are made, with --seed and those that follow it, each as long as one; then mean and deviation."""
    list_presets: Switch = False
    """Nothing is trained; show all presets with the paper's figures."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """The settings come from here, and other flags change them: the folder of a run, a JSON or a TOML file, or - for
    JSON from standard input."""
    print_config: Switch = False
    """The settings are printed as JSON, for --config, and nothing is trained."""
    checkpoint_seconds: float = 60.0
    """So many seconds lie between checkpoints; 0 writes one after every step."""
    quiet: Quiet = False
    json: Json = False

    def __post_init__(self) -> None:
        require(self, "checkpoint_seconds", 0 <= self.checkpoint_seconds < float("inf"), "0 or more")
        require_at_least(self, 1, "seeds")
        if self.resume and self.out is None:
            raise ArgumentError("--resume needs --out: which run shall go on?")

    @classmethod
    def defaults(cls, words: Sequence[str]) -> "Train":
        """The recipe, the preset or the stored config that the other flags then change."""
        known = [word for word in words if word not in ("-h", "--help")]
        try:
            peek, _ = tyro.cli(Peek, args=known, return_unknown_args=True, console_outputs=False, add_help=False)
        except SystemExit:
            # A flag without its value: said when all flags are read.
            return cls()
        if peek.resume and peek.out is not None and (peek.out / FILE).exists():
            from skewconv.train.checkpoint import Checkpoint

            return cls(config=Checkpoint(peek.out / FILE).header.config)
        if peek.resume and peek.out is not None and (peek.out / SEEDS).exists():
            from skewconv.train.seeds import stored_seeds

            stored = stored_seeds(peek.out)
            return cls(config=stored.config, seeds=stored.count)
        config = recipe(peek.data or "digits")
        if peek.preset is not None:
            config = preset(peek.preset)
        if peek.config is not None:
            if peek.preset is not None:
                raise ArgumentError(f"--config {peek.config} and --preset {peek.preset} are both given: choose one")
            config = read_config(peek.config)
        if peek.minutes is not None and peek.epochs is None:
            # Only a stand-in: the flag itself is read, and checked, with all the others.
            config = replace(config, epochs=None, minutes=1.0)
        if peek.epochs is not None and peek.minutes is None:
            config = replace(config, epochs=1, minutes=None)
        return cls(config=config)

    def run(self) -> int:
        """Train, and print the figures."""
        if self.print_config:
            print_json(to_dict(self.config))
            return 0
        if self.list_presets:
            list_presets(self.json)
            return 0
        begun = self.out is not None and any((self.out / name).exists() for name in (FILE, SEEDS))
        if self.config.init is not None and not begun:
            existing_checkpoint(self.config.init)
        if str(self.config_file) == "-" and self.hardware.processes > 1:
            raise ArgumentError("--config - is read once, and several processes would read it: give a file")
        self._refuse_other_runs()
        with Progress("starting", quiet=self.quiet):
            # All that takes long to load is loaded while this line shows.
            from skewconv.train.build import load_data, prepared
            from skewconv.train.go_on import checkpoint_of, sole_writer
            from skewconv.train.loop import Trainer
            from skewconv.train.seeds import SeedRuns

            # Whoever waits for the command waits for its imports and its end too; inside another program they are not
            # ours.
            before, closing = (process_age(), closing_seconds()) if is_the_program() else (0.0, 0.0)
            started = time.monotonic() - before
            if is_the_program():
                keep_freed_memory()
            fabric = self.hardware.fabric(self.config)
            # One process prepares the cache, and the others find it there.
            with fabric.rank_zero_first():
                data = load_data(self.config)
            # Refuses what does not fit the images, or float32, before there is a folder.
            config, images = prepared(self.config, data, self.hardware.processes)
        if config != self.config and fabric.is_global_zero and not self.quiet:
            size, wanted = config.loading.batch_size, self.config.loading.batch_size
            print(f"batches of {size}, not {wanted}: there are {len(images.train)} training images", file=sys.stderr)
        times: dict[str, Any] = {"started": started, "closing": closing, "checkpoint_seconds": self.checkpoint_seconds}
        words = sys.argv[1:] if is_the_program() else None
        if self.seeds > 1:
            folder = fabric.broadcast(self._folder("-seeds") if fabric.is_global_zero else None)
            return self._train_seeds(SeedRuns(config, self.seeds, folder), fabric, images, words)
        folder = fabric.broadcast(self._folder() if fabric.is_global_zero else None)
        with sole_writer(folder, fabric):
            checkpoint = checkpoint_of(folder, config, may_be_longer=True)
            if fabric.is_global_zero:
                describe_run(folder, config, words)
            display = display_for(self.quiet) if fabric.is_global_zero else Silent()
            with contextlib.closing(display):
                outcome = Trainer(config, fabric, folder, images, checkpoint=checkpoint, display=display, **times).fit()
        if fabric.is_global_zero:
            self._report(folder, outcome)
        return 0 if outcome.stopped_by is None else 128 + outcome.stopped_by

    def _train_seeds(self, runs: "SeedRuns", fabric: Any, images: "Parts", words: Sequence[str] | None) -> int:
        from skewconv.commands.seeds import print_seeds

        shows = fabric.is_global_zero and not self.quiet
        record, stopped = runs.run(
            fabric,
            images,
            words=words,
            display=lambda: display_for(self.quiet),
            note=(lambda text: print(text, file=sys.stderr, flush=True)) if shows else (lambda text: None),
            checkpoint_seconds=self.checkpoint_seconds,
        )
        if fabric.is_global_zero:
            print_seeds(runs.folder, record, stopped, as_json=self.json)
        return 0 if stopped is None else 128 + stopped

    def _refuse_other_runs(self) -> None:
        """A run is never overwritten, nor taken for one of several."""
        if self.out is None:
            return
        found = next((name for name in (FILE, SEEDS) if (self.out / name).exists()), None)
        if found is not None and not self.resume:
            raise ArgumentError(f"{self.out} already holds a run: continue it with --resume, or choose another --out")
        if found == FILE and self.seeds > 1:
            raise ArgumentError(f"--seeds is {self.seeds}, but {self.out} holds a single run: choose another --out")
        if found == SEEDS:
            from skewconv.train.seeds import stored_seeds

            stored = stored_seeds(self.out).count
            require(self, "seeds", self.seeds >= stored, f"at least {stored}: so many runs were begun in {self.out}")

    def _folder(self, kind: str = "") -> Path:
        model = self.config.model
        depth = f"-{model.depth}" if model.arch == "lipconvnet" else ""
        name = f"{self.config.data.partition(':')[0]}-{model.arch}{depth}-{model.conv}{kind}"
        folder = self.out or _RUNS / name
        count = 1
        try:
            while True:
                try:
                    folder.mkdir(parents=True, exist_ok=self.out is not None)
                    return folder
                except FileExistsError:
                    if self.out is not None:
                        raise
                    count += 1
                    folder = _RUNS / f"{name}-{count}"
        except OSError as error:
            raise SkewconvError(
                f"the folder {folder} cannot be made: {error.strerror}: choose another --out"
            ) from error

    def _report(self, folder: Path, outcome: "Outcome") -> None:
        if outcome.stopped_by is not None:
            again = f"{program()} train --resume --out {shlex.quote(str(folder))}"
            if self.json:
                print_json({"status": "stopped", "step": outcome.position.step, "run": str(folder), "next": again})
            else:
                step = outcome.position.step
                print(f"stopped by {outcome.stopped_by.name} after step {step}, and saved. Continue with:\n  {again}")
            return
        assert outcome.record is not None
        if self.json:
            print_json({**outcome.record, "run": str(folder)})
            return
        results = outcome.record["results"]
        epochs = "1 epoch" if results["epochs"] == 1 else f"{results['epochs']:.3g} epochs"
        done = f"{epochs} in {clock_time(results['seconds'])}"
        images = {"test": "test images", "validation": "validation: held-out training images"}[results["split"]]
        more = paper_rows(self.config)
        print_figures(f"{self.config.preset or self.config.data}: {done}", images, results, more)
        place = shlex.quote(str(folder))
        print(f"the run   {folder}")
        print(f"look      {program()} report {place}")
        print(f"try it    {program()} explore {place}")
