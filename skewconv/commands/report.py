"""skewconv report: one run, or several side by side, in one HTML file."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.commands import Switch, print_json
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.train.environment import existing_checkpoint


@dataclass(frozen=True)
class Report:
    """Write one HTML page on one or several runs: metrics, curves, certificates, images, layers, attacks, config.

    The page names missing files with the command that makes them. Where a run has no certificates, up to 1,000 test
    images are certified for the page.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="runs", metavar="RUN [RUN ...]")]
    """Folders of runs, or checkpoint files; several are compared."""
    out: Path = Path("report.html")
    """File to write."""
    png: Switch = False
    """Write each figure as a PNG too, in a folder beside the page."""
    json: Switch = False
    """Print a JSON document with the paths that were written."""

    def run(self) -> int:
        if not self.runs:
            raise ArgumentError("RUN is missing: name the folder of a run, or several")
        if self.out.is_dir() or not self.out.parent.is_dir():
            raise ArgumentError(f"--out is {self.out}: it must be a file in a folder that exists")
        for path in self.runs:
            existing_checkpoint(path)
        optional("matplotlib", "matplotlib", "report")
        optional("jinja2", "Jinja2", "report")
        from skewconv.records import atomic_write
        from skewconv.report import collect, render_page, write_figures

        facts = collect(self.runs, lambda text: print(text, file=sys.stderr))
        atomic_write(self.out, render_page(facts).encode())
        written = [self.out]
        folder = self.out.with_name(f"{self.out.stem}-files")
        if self.png:
            folder.mkdir(exist_ok=True)
            written += write_figures(facts, folder)
        if self.json:
            print_json({"written": [str(path) for path in written]})
        else:
            print(f"written   {self.out}  ({self.out.stat().st_size / 1e6:.1f} MB, open it in a browser)")
            if len(written) > 1:
                print(f"and       {len(written) - 1} files in {folder}")
        return 0
