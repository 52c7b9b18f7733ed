"""skewconv explore: a page on this machine to attack images by hand."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.commands import Json, is_the_program
from skewconv.errors import SkewconvError
from skewconv.extras import optional
from skewconv.train.environment import FILE, existing_checkpoint

#: explored when no run is named: the network of the package
SHIPPED = "cifar10"
_DIGITS = Path("runs") / "digits-lipconvnet-5-soc"


@dataclass(frozen=True)
class Explore:
    """Serve a page, on this machine only, to attack images by hand beside their certified radii.

    Without a run it takes the network of the package where CIFAR-10 is in the cache, or else the run of skewconv train
    on the digits, trained first if need be. The printed address holds a token, which every request needs. Ctrl-C ends
    the server.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="runs", metavar="[RUN ...]")] = ()
    """Folders of runs, or checkpoint files; several are shown side by side."""
    port: int = 0
    """Port of the page (0: any that is free)."""
    json: Json = False

    def run(self) -> int:
        for path in self.runs:
            existing_checkpoint(path)
        for module in ("anyio", "jinja2", "matplotlib", "starlette", "uvicorn"):
            optional(module, module, "explore")
        from skewconv.explore import open_models, serve_page
        from skewconv.serve import listen

        with listen(self.port) as listener:
            models = open_models(self.runs or default_runs())

            def announce(address: str) -> None:
                text = f"open      {address}\n          this machine only; Ctrl-C ends it"
                found = {"address": address, "models": [model.name for model in models]}
                print(json.dumps(found) if self.json else text, flush=True)

            serve_page(models, listener, announce, _note)
        _note("ended")
        if is_the_program():
            # An attack that is still being computed cannot be interrupted.
            sys.stderr.flush()
            os._exit(0)
        return 0


def default_runs() -> Sequence[Path | str]:
    """The network of the package if its images are in the cache, or a run on the digits, trained now if need be."""
    from skewconv.train.data import load_dataset
    from skewconv.train.run import open_run

    with contextlib.suppress(SkewconvError):
        load_dataset(open_run(SHIPPED).config.data, download=False)
        return [SHIPPED]
    there = (_DIGITS / FILE).exists()
    if there and open_run(_DIGITS).position.finished:
        return [_DIGITS]
    _note("no run was named, so a small network is trained on the digits first: a minute or two")
    from skewconv.commands.train import Train
    from skewconv.train.presets import recipe

    config = open_run(_DIGITS).config if there else recipe("digits")
    # Standard output is for the address alone.
    with contextlib.redirect_stdout(sys.stderr):
        if Train(config, out=_DIGITS, resume=True).run() != 0:
            raise KeyboardInterrupt
    return [_DIGITS]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
