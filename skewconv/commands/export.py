"""skewconv export: a trained network as a file that runs where the product runs."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skewconv.choices import StoredWeights
from skewconv.commands import EvalFlags, Switch, print_json, print_table
from skewconv.config import refuse_unused, require_at_least, require_positive, to_dict
from skewconv.errors import ArgumentError
from skewconv.progress import Progress
from skewconv.records import make_record
from skewconv.train.environment import WEIGHTS_SUFFIX, existing_checkpoint

if TYPE_CHECKING:
    from skewconv.export import Export
    from skewconv.train.run import Run

_OPTIONS = ("tol", "weights", "max_mb", "preprocess")
# The figures of a run's record that its model card shows.
_FIGURES = ("split", "images", "clean", "certified", "mean_radius")


@dataclass(frozen=True)
class ExportCommand(EvalFlags):
    """Write a trained network as a file that gives logits and certified radii without this library.

    The network is frozen for its image size, and what is stored is certified itself. The file is run on the images
    before it is put in place: the same classes, logits within the tolerance, no radius above the proven one.
    """

    out: Path = field(kw_only=True)
    """File to write: FILE.onnx, FILE.pt2, or FILE.py with FILE.safetensors beside it."""
    to: Literal["onnx", "torch-export", "vanilla"] = "onnx"
    """Format: ONNX, a program of torch.export, or a Python file of torch.nn modules and its weights."""
    tol: float = 1e-3
    """Largest difference from the network's logits, relative to the size of the activations."""
    weights: StoredWeights = "float32"
    """Type of the stored weights; with float16 the rounded network is certified, and computes in float32."""
    max_mb: float | None = None
    """Largest file size in MB (none: twice the parameters, or more where the speed would fall by half)."""
    preprocess: Switch = False
    """Let the ONNX file take pictures of any size in uint8, and resize and crop them itself."""
    no_radius: Switch = False
    """Write logits alone, without radii: for networks that cannot be certified."""

    def __post_init__(self) -> None:
        require_positive(self, "tol", "max_mb")
        require_at_least(self, 1, "images")
        if self.to != "onnx":
            refuse_unused(self, ("preprocess",), "is for --to onnx")

    def run(self) -> int:
        place = existing_checkpoint(self.run_path)
        if self.to == "vanilla" and self.out.with_suffix(WEIGHTS_SUFFIX).resolve() == place.resolve():
            raise ArgumentError(f"--out is {self.out}: its weights would replace {place}; choose another name")
        with Progress("starting", quiet=self.quiet) as progress:
            from skewconv.export import TARGETS, export

            run, images = self.open_run(place, progress)
            progress.start("checking", "images")
            options: dict[str, Any] = {name: getattr(self, name) for name in _OPTIONS}
            options |= {"radius": not self.no_radius, "images": images.tensors()[0], "progress": progress}
            options["accuracy"] = _accuracy(run)
            shape, classes = run.input_shape, run.data.classes
            found = export(TARGETS[self.to], run.model, self.out, shape, classes, **options)
        if self.json:
            results = {
                **images.facts(),
                "files": {file.name: file.stat().st_size for file in found.files},
                "layers": [asdict(row) for row in found.rows],
                "agreement": asdict(found.agreement),
                **found.metadata,
            }
            print_json(make_record("export", config=to_dict(run.config), seed=run.config.seed, results=results))
        else:
            _print(found, images.title)
        return 0


def _accuracy(run: "Run") -> dict[str, Any] | None:
    """The figures of a run that has ended; None where there are none, as of imported ones."""
    results = run.record()["results"] if run.position.finished and run.record_path.is_file() else {}
    return {name: results[name] for name in _FIGURES if name in results} or None


def _print(found: "Export", images: str) -> None:
    each = 2e-6 if found.metadata["weights"] == "float16" else 4e-6
    numbers, work = sum(row.numbers for row in found.rows), sum(row.multiply_adds for row in found.rows)
    layers = [(row.layer, row.form, row.numbers, row.multiply_adds) for row in found.rows]
    lines = [(*words, f"{n * each:.2f}", f"{work:,}") for *words, n, work in [*layers, ("all", "", numbers, work)]]
    print_table("", lines, ("layer", "form", "MB", "multiply-adds"), 2)
    agrees, facts = found.agreement, found.metadata
    rows = [(f"checked on {images}", f"{agrees.images:,}")]
    rows.append(("largest difference of a logit", f"{agrees.largest_difference:.1e}"))
    rows.append(("images of another class, nearer to a tie than the tolerance", str(agrees.other_classes)))
    if agrees.median_radius is not None:
        slack = facts["float32_slack"]
        rows.append(("proven Lipschitz bound", f"{facts['lipschitz_upper_bound']:.6g}"))
        rows.append((f"slack for float32 ({slack['kind']}), of each logit", f"{slack['logits']:.1e}"))
        rows.append(("median radius", f"{agrees.median_radius:.4f}"))
    for file in found.files:
        size = file.stat().st_size
        rows.append((str(file), f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size / 1e3:.1f} kB"))
    print_table("exported", rows)
    print(f"card      {found.files[0].with_name('MODEL.md')}")
    print("radii     of this file's own function, within the tolerance of the network that predict runs")
