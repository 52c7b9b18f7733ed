"""skewconv report: one run, or several side by side, in one HTML file."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from skewconv.commands import Switch, print_json
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.train.environment import AUDIT, existing_checkpoint, is_shipped


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
    complete: Switch = False
    """Certify and audit runs first where that is missing, as skewconv certify and skewconv audit do."""
    png: Switch = False
    """Write each figure as a PNG too, in a folder beside the page."""
    svg: Switch = False
    """Write each figure as an SVG too."""
    latex: Switch = False
    """Write the tables for LaTeX too, with booktabs."""
    csv: Switch = False
    """Write the tables as comma-separated values too."""
    json: Switch = False
    """Print a JSON document with the paths that were written."""

    def run(self) -> int:
        """Read, draw, write."""
        if not self.runs:
            raise ArgumentError("RUN is missing: name the folder of a run, or several")
        if self.out.is_dir() or not self.out.parent.is_dir():
            raise ArgumentError(f"--out is {self.out}: it must be a file in a folder that exists")
        shipped = [path for path in self.runs if is_shipped(existing_checkpoint(path))]
        if shipped and self.complete:
            raise ArgumentError(f"--complete writes into a run, and {shipped[0]} comes with the package: leave it out")
        optional("matplotlib", "matplotlib", "report")
        optional("jinja2", "Jinja2", "report")
        from skewconv.records import atomic_write
        from skewconv.report import collect, render_page, write_figures, write_tables

        if self.complete:
            self._complete()
        facts = collect(self.runs, lambda text: print(text, file=sys.stderr))
        atomic_write(self.out, render_page(facts).encode())
        written = [self.out]
        folder = self.out.with_name(f"{self.out.stem}-files")
        asked = {"png": self.png, "svg": self.svg, "tex": self.latex, "csv": self.csv}
        for kind in (kind for kind, wanted in asked.items() if wanted):
            folder.mkdir(exist_ok=True)
            written += (write_tables if kind in ("tex", "csv") else write_figures)(facts, folder, kind)
        if self.json:
            print_json({"written": [str(path) for path in written]})
        else:
            print(f"written   {self.out}  ({self.out.stat().st_size / 1e6:.1f} MB, open it in a browser)")
            if len(written) > 1:
                print(f"and       {len(written) - 1} files in {folder}")
        return 0

    def _complete(self) -> None:
        """Run the commands whose records are missing; what they print goes to standard error."""
        from skewconv.certify.certificates import TABLE
        from skewconv.commands.audit import Audit
        from skewconv.commands.certify import Certify

        with contextlib.redirect_stdout(sys.stderr):
            for path in self.runs:
                folder = existing_checkpoint(path).parent
                if not (folder / TABLE).exists():
                    Certify(path, split="test").run()
                if not (folder / AUDIT).exists():
                    Audit(path).run()
