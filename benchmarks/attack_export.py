"""Claim: no point inside the radius that an exported file gives is classified otherwise by that file.

What against what: a trained run is exported to ONNX and checked on its test images; PGD of 200 steps and 5 restarts on
the frozen twin moves images to the end of the radii that the file gives them; onnxruntime, in its own float32
arithmetic, says the class at both ends. Writes benchmarks/records/attack-export-NAME.json with versions and machine,
and the table of docs/export.md.

Run: python benchmarks/attack_export.py RUN --name cifar10 [--images 256] [--check 2000] [--weights float16]
"""

import argparse
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from file_attack import attack_file
from tables import write_pages

from skewconv.certify import PGD
from skewconv.config import to_dict
from skewconv.export import TARGETS, export
from skewconv.progress import Progress
from skewconv.records import make_record, write_record
from skewconv.train.run import eval_data, open_run

RECORDS = Path(__file__).parent / "records"


def main() -> int:
    """Export, attack, write, print; 1 if a class was changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--images", type=int, default=256, help="number of test images to attack")
    parser.add_argument("--check", type=int, help="number of test images that check the file (default: all)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--weights", choices=("float32", "float16"), default="float32")
    arguments = parser.parse_args()
    run, target = open_run(arguments.run), TARGETS["onnx"]
    checked = eval_data(run, split="test", images=arguments.check).tensors()[0]
    attacked = eval_data(run, split="test", images=arguments.images).tensors()[0]
    with tempfile.TemporaryDirectory() as folder, Progress("exporting") as progress:
        path, options = Path(folder) / "model.onnx", {"images": checked, "weights": arguments.weights}
        made = export(target, run.model, path, run.input_shape, run.data.classes, progress=progress, **options)
        progress.start("attacking", "images")
        attack = PGD(steps=arguments.steps, restarts=arguments.restarts)
        found = attack_file(target.read(path).runner, made.frozen, attacked, attack, progress=progress)
        size = path.stat().st_size
    results = {
        "attack": {"kind": "pgd", "steps": arguments.steps, "restarts": arguments.restarts, "norm": "l2"},
        "runtime": {name: metadata.version(name) for name in ("onnx", "onnxruntime")},
        "shown": len(attacked),
        **asdict(found),
        "bytes": size,
        "layers": [asdict(row) for row in made.rows],
        "agreement": asdict(made.agreement),
        **made.metadata,
    }
    record = make_record("export-attack", config=to_dict(run.config), seed=run.config.seed, results=results)
    write_record(RECORDS / f"attack-export-{arguments.name}.json", record)
    write_pages()
    print(
        f"{found.images} of {len(attacked)} images have a radius; {found.steps:,} steps, mean distance "
        f"{found.mean_distance:.3f}, median share of the radius {found.median_share:.4f}: {len(found.flips)} changed"
    )
    return 1 if found.flips else 0


if __name__ == "__main__":
    raise SystemExit(main())
