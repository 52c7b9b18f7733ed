"""skewconv explore: a page on this machine to attack images by hand."""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.errors import SkewconvError

#: the run that is explored when none is named: the one that ships with the package, if there is one
SHIPPED = "cifar10"
_DIGITS = Path("runs") / "digits-lipconvnet-5-soc"


@dataclass(frozen=True)
class Explore:
    """Open a page, on this machine only, where images are attacked by hand and certificates can be seen to hold.

    Without a run it takes the model that ships with the package, or else the newest run on the digits under runs/, or
    else trains one first. The address that is printed holds a token; only who has it can use the page. Ctrl-C ends it.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="runs", metavar="[RUN ...]")] = ()
    """The folders of runs, or checkpoint files; several are shown side by side."""
    port: int = 0
    """The port of the page; 0 takes any that is free."""

    def run(self) -> int:
        """Prepare, serve, and end at once when interrupted."""
        from skewconv.explore import open_subjects, serve
        from skewconv.extras import optional

        for module in ("anyio", "starlette", "uvicorn", "matplotlib", "jinja2"):
            optional(module, module, "explore")
        subjects = open_subjects(self.runs or default_runs(), _note)
        with contextlib.suppress(KeyboardInterrupt):
            serve(subjects, self.port, _announce)
        print("ended", flush=True)
        if threads_may_compute():
            # An attack that is still being computed cannot be interrupted, and nobody waits for it.
            sys.stderr.flush()
            os._exit(0)
        return 0


def threads_may_compute() -> bool:
    """Whether this process is the command itself, and not a program that called it."""
    program = Path(sys.argv[0])
    return program.stem == "skewconv" or program.parts[-2:] == ("skewconv", "__main__.py")


def default_runs() -> Sequence[Path | str]:
    """The model that ships with the package, or a run on the digits, trained now if there is none."""
    from skewconv.train.run import open_run

    try:
        open_run(SHIPPED)
        return [SHIPPED]
    except SkewconvError:
        pass
    found = [path for path in Path("runs").glob("digits-*") if (path / "checkpoint.safetensors").exists()]
    if found:
        return [max(found, key=lambda path: (path / "checkpoint.safetensors").stat().st_mtime)]
    _note("no run was named, so a small network is trained on the digits first: a minute or two")
    from skewconv.commands.train import Train

    Train(out=_DIGITS).run()
    return [_DIGITS]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _announce(address: str) -> None:
    print(f"open      {address}\n          this machine only; Ctrl-C ends it", flush=True)
