"""Claim: an exported ONNX file, run by onnxruntime, takes at most 1.2 times as long as the frozen model in PyTorch.

What against what: LipConvnet-5 for 32 x 32 images with zero and with circular padding, as it is in eval mode (eager),
frozen, frozen and compiled by torch.compile, and as an ONNX file, all in one process, in turn, two threads, float32;
the best round of each counts. Size is that of the numbers each holds (the file's, for ONNX), the first call includes
building, compiling or loading, and the proven error is that of all layers together, relative to the activations.
Writes benchmarks/records/export-speed-WIDTH.json with versions and machine, and the tables of docs/performance.md.

With --sizes it exports the shipped network with several options instead, and measures files, processor time of one
thread of onnxruntime and agreement on 64 test images: records/export-sizes.json and the table of docs/export.md.

Run: python benchmarks/bench_export.py [--width 32] [--rounds 7] [--no-record] [--sizes]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from tables import write_pages
from torch import Tensor, nn

from skewconv.bench import at_most, side_by_side
from skewconv.export import onnx
from skewconv.frozen import freeze
from skewconv.models import LipConvnet
from skewconv.nn import SOC2d
from skewconv.records import make_record, write_record
from skewconv.train.run import eval_data, open_run

HERE = Path(__file__).parent
SHAPE, TOL, THREADS, TARGET = (3, 32, 32), 1e-3, 2, 1.2


def build_eager(model: nn.Module, folder: Path) -> tuple[Callable[[Tensor], object], int]:
    """The model itself."""
    return model, 4 * sum(parameter.numel() for parameter in model.parameters())


def build_frozen(model: nn.Module, folder: Path) -> tuple[Callable[[Tensor], object], int]:
    """Frozen at the tolerance of the export."""
    frozen = freeze(model, SHAPE, TOL)
    return frozen, 4 * sum(tensor.numel() for tensor in frozen.buffers())


def build_compiled(model: nn.Module, folder: Path) -> tuple[Callable[[Tensor], object], int]:
    """The frozen model, compiled for each batch size that it meets."""
    frozen, size = build_frozen(model, folder)
    return torch.compile(frozen, dynamic=False), size


def build_onnx(model: nn.Module, folder: Path) -> tuple[Callable[[Tensor], object], int]:
    """A file with logits and radii, in the fastest forms, checked on a few random images, loaded by onnxruntime."""
    shown = torch.rand(64, *SHAPE)
    path = onnx(model, folder / "model.onnx", SHAPE, images=shown, tol=TOL, max_mb=1000).files[0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.numpy()}), path.stat().st_size


CONTESTANTS = {"eager": build_eager, "frozen": build_frozen, "torch.compile": build_compiled, "ONNX": build_onnx}


def measure(padding_mode: str, width: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each contestant."""
    torch.manual_seed(0)
    model = LipConvnet(5, width=width, padding_mode=padding_mode).eval().requires_grad_(False)
    one, many = torch.rand(1, *SHAPE), torch.rand(128, *SHAPE)
    own_error = sum(layer.polynomial().truncation_error for layer in model.modules() if isinstance(layer, SOC2d))
    runs, sizes, firsts = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, build in CONTESTANTS.items():
            began = time.perf_counter()
            runs[name], sizes[name] = build(model, Path(folder))
            runs[name](one)
            firsts[name] = time.perf_counter() - began
            print(f"  {name}: ready after {firsts[name]:.1f} s, {sizes[name] / 1e6:.1f} MB", flush=True)
    single = side_by_side({n: lambda run=run: run(one) for n, run in runs.items()}, rounds=4 * rounds, threads=THREADS)
    batch = side_by_side({n: lambda run=run: run(many) for n, run in runs.items()}, rounds=rounds, threads=THREADS)
    return [
        {
            "padding": padding_mode,
            "name": name,
            "bytes": sizes[name],
            "first_call_seconds": firsts[name],
            "latency_seconds": min(single[name]),
            "images_per_second": 128 / min(batch[name]),
            "proven_error": own_error + (0.0 if name == "eager" else TOL),
            "rounds": {"1": single[name], "128": batch[name]},
        }
        for name in CONTESTANTS
    ]


SIZES: dict[str, dict[str, Any]] = {"none": {}, "`--weights float16`": {"weights": "float16"}}


def processor_seconds(work: Callable[[], object], rounds: int) -> float:
    """The least processor time of a call, which other programs on the machine hardly touch."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measure_size(options: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The shipped network as an ONNX file with these options."""
    run = open_run("cifar10")
    images = eval_data(run, split="test", images=64).tensors()[0]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        made = onnx(run.model, Path(folder) / "model.onnx", run.input_shape, images=images, **options)
        path = str(made.files[0])
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        size = made.files[0].stat().st_size
    times = {}
    for batch in (1, 32):
        given = {"images": images[:batch].numpy()}
        times[str(batch)] = processor_seconds(lambda given=given: session.run(None, given), 4 * rounds) / batch
    return {"bytes": size, "processor_seconds": times, **asdict(made.agreement)}


def write_sizes(rounds: int) -> int:
    """Measure, write the record and the table, print."""
    torch.set_num_threads(1)
    rows = {}
    for name, options in SIZES.items():
        rows[name] = measure_size(options, rounds)
        print(f"{name:36} {rows[name]['bytes'] / 1e6:6.1f} MB  {rows[name]['processor_seconds']}", flush=True)
    runtime = {name: metadata.version(name) for name in ("onnx", "onnxruntime")}
    record = make_record("bench", config={"network": "cifar10"}, seed=0, results={"runtime": runtime, "rows": rows})
    write_record(HERE / "records" / "export-sizes.json", record)
    write_pages()
    return 0


def main() -> int:
    """Measure, write the record and the table, print; 1 if the claim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-record", action="store_true", help="print only")
    parser.add_argument("--sizes", action="store_true", help="measure the shipped network with several options")
    arguments = parser.parse_args()
    if arguments.sizes:
        return write_sizes(arguments.rounds)
    torch.set_num_threads(THREADS)
    rows, claims = [], []
    with torch.no_grad():
        for padding_mode in ("zeros", "circular"):
            print(f"LipConvnet-5 of width {arguments.width}, padding {padding_mode}", flush=True)
            found = {row["name"]: row for row in measure(padding_mode, arguments.width, arguments.rounds)}
            rows += found.values()
            for row in found.values():
                latency, speed = row["latency_seconds"] * 1e3, row["images_per_second"]
                print(
                    f"  {row['name']:14} {latency:8.2f} ms at batch 1 {speed:10.0f} images/s at batch 128", flush=True
                )
            ratio = found["frozen"]["images_per_second"] / found["ONNX"]["images_per_second"]
            what = f"inference at batch 128, {padding_mode} padding, ONNX / frozen"
            claims.append(at_most(what, ratio, TARGET))
            if arguments.width == 32:
                claims += [
                    at_most(f"seconds to freeze, {padding_mode} padding", found["frozen"]["first_call_seconds"], 5),
                    at_most(f"seconds to export, {padding_mode} padding", found["ONNX"]["first_call_seconds"], 30),
                ]
            print(*claims, sep="\n", flush=True)
    if not arguments.no_record:
        runtime = {name: metadata.version(name) for name in ("onnx", "onnxruntime")}
        config = {"depth": 5, "width": arguments.width, "tol": TOL, "threads": THREADS}
        results = {"runtime": runtime, "rows": rows, "claims": [asdict(claim) for claim in claims]}
        record = make_record("bench", config=config, seed=0, results=results)
        write_record(HERE / "records" / f"export-speed-{arguments.width}.json", record)
        write_pages()
    return 0 if all(claim.met for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
