"""The flags that several commands share, each described once."""

from pathlib import Path
from typing import Annotated, TypeAlias

import tyro

from skewconv.choices import DeviceName, SplitName

RunPath: TypeAlias = Annotated[
    tyro.conf.Positional[Path],
    tyro.conf.arg(
        name="run",
        metavar="RUN",
        help="This is the folder of a run, a checkpoint file, or cifar10, which comes with the package.",
    ),
]
ImageCount: TypeAlias = Annotated[
    int | None,
    tyro.conf.arg(help="So many images are taken, evenly spread over the split; all by default."),
]
BatchSize: TypeAlias = Annotated[int, tyro.conf.arg(help="So many images are computed at once.")]
Device: TypeAlias = Annotated[
    DeviceName, tyro.conf.arg(help="The computation runs on this kind of device; auto is a GPU if there is one.")
]
Switch: TypeAlias = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Quiet: TypeAlias = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="Show no progress.")]
Json: TypeAlias = Annotated[
    bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="Print one JSON document instead of a text for people.")
]
Split: TypeAlias = Annotated[
    SplitName | None,
    tyro.conf.arg(
        help="Test images are judged, or those the run held out; by default those it was judged by in training."
    ),
]
OtherData: TypeAlias = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="folder:PATH",
        help="These pictures are judged instead of the run's own; their folders must be classes of the run.",
    ),
]
Fast: TypeAlias = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.arg(
        help="The network is frozen at a tolerance of 1e-3 first: a function of its own, with fewer products and its "
        "own proven bounds, of which everything is then said."
    ),
]
SkipBad: TypeAlias = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.arg(help="Files of --data that cannot be read are named and left out."),
]
