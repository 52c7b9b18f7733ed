"""skewconv predict: the class of any picture, with its certified radius."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from skewconv.commands import BatchSize, Fast, Quiet, RunPath, Switch, print_json, print_table
from skewconv.errors import ArgumentError
from skewconv.progress import Progress
from skewconv.train.environment import existing_checkpoint

# Of a table of 80 columns, which breaks no name; a longer path is shown by its end.
_NAME_LENGTH = 30
_SENTENCES = 8


@dataclass(frozen=True)
class Predict:
    """Predict the class and the certified radius of pictures: no change shorter than the radius alters the class."""

    run_path: RunPath
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="images", metavar="IMAGE...")]
    """Pictures, or folders of pictures."""
    resize: Switch = False
    """Resize the shorter side and crop the centre of pictures of another size, which are refused otherwise."""
    skip_bad: Switch = False
    """Leave out files that cannot be read, and name them."""
    fast: Fast = False
    batch_size: BatchSize = 128
    quiet: Quiet = False
    json: Switch = False
    """Print a JSON list with one entry for each picture."""

    def run(self) -> int:
        if not self.images:
            raise ArgumentError("IMAGE is missing: name pictures, or folders of pictures")
        place = existing_checkpoint(self.run_path)
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.certify.certificates import FAST_TOLERANCE, fast_function
            from skewconv.certify.predict import predict
            from skewconv.train.data.images import read_pictures, to_input
            from skewconv.train.run import open_run

            run = open_run(place)
            progress.start("predicting")
            files = list(_pictures(self.images))
            channels, height, width = run.input_shape
            pixels, good = read_pictures(files, (channels, height, width), self.resize, self.skip_bad)
            model = fast_function(run.model, tuple(run.input_shape), FAST_TOLERANCE if self.fast else None)
            found = predict(model, to_input(pixels), batch_size=self.batch_size, float32=True)
            named = zip(good, found.rows(run.data.classes, channels), strict=True)
            rows = [{"file": str(files[index]), **row} for index, row in named]
        if self.json:
            print_json(rows)
        else:
            assert found.slack is not None
            _print(rows, found.slack.in_words())
            if self.fast:
                print("The network is the one frozen at a tolerance of 1e-3.")
        return 0


def _pictures(paths: Sequence[Path]) -> Iterator[Path]:
    """The files, and all pictures inside the folders, sorted."""
    from skewconv.train.data.dataset import DataError
    from skewconv.train.data.images import SUFFIXES

    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist: name pictures, or folders of pictures")
        if not path.is_dir():
            yield path
            continue
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not found:
            raise DataError(f"{path} holds no pictures: they end in {' '.join(SUFFIXES)}")
        yield from found


def _print(rows: Sequence[dict[str, Any]], slack: str) -> None:
    from skewconv.certify.predict import rounded_down

    lines = []
    for row in rows:
        file = row["file"] if len(row["file"]) <= _NAME_LENGTH else "…" + row["file"][1 - _NAME_LENGTH :]
        margin, radius = f"{row['margin']:.3f}", rounded_down(row["radius"])
        lines.append((file, row["class"], row["runner_up"], margin, radius))
    print_table("", lines, ("picture", "class", "runner-up", "margin", "radius"), 2)
    for row in rows[:_SENTENCES]:
        place = f" Its radius is {row['place']}." if "place" in row else ""
        print(f"{Path(row['file']).name}, {row['class']}: {row['meaning']}.{place}")
    if len(rows) > _SENTENCES:
        print(f"{len(rows) - _SENTENCES} more: --json has a sentence for each.")
    meaning = "Certified radii are l2 distances for pixels in [0, 1], proven for the network in float64 arithmetic. "
    meaning += f"Those of float32, which --json shows too, are smaller by a slack that is {slack}."
    print(textwrap.fill(meaning, 100))
