"""The flags that several commands share, each described once."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import tyro

from skewconv.choices import DeviceName

RunPath: TypeAlias = Annotated[
    tyro.conf.Positional[Path],
    tyro.conf.arg(name="run", metavar="RUN", help="This is the folder of a run, or a checkpoint file."),
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
    Literal["test", "validation"] | None,
    tyro.conf.arg(
        help="Test images are judged, or those the run held out; by default those it was judged by in training."
    ),
]
