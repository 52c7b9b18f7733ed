"""What one processor makes, another accepts: runs and certificates travel between kernels and numbers of threads.

The processors are two settings of this one. Where it has no AVX-512, only the number of threads tells them apart.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skewconv.records import read_record
from tests.train.runs import environment
from tests.waiting import output

SETTINGS = {
    "small": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OMP_NUM_THREADS": "1",
    },
    "large": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
}
OTHER = {"small": "large", "large": "small"}
# Several commands in one process, which has loaded torch once; each prints a line of its own.
CODE = """
import contextlib, io, json, sys
from skewconv.cli import main
for words in json.loads(sys.argv[1]):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(words)
    print(json.dumps([status, json.loads(printed.getvalue())]))
"""


def commands(setting: str, folder: Path, *lines: tuple[str, ...]) -> list[dict[str, Any]]:
    """The results of `skewconv` commands, run one after the other on such a processor; each must succeed."""
    shared = {k: v for k, v in environment(folder / "cache").items() if k not in SETTINGS["small"]}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, json.dumps([[*line, "--json"] for line in lines])],
        env={**shared, **SETTINGS[setting]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = output(process)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [status for status, _ in answers] == [0] * len(lines), f"{out}\n{err}"
    return [document["results"] for _, document in answers]


@pytest.mark.parametrize("maker", SETTINGS)
def test_runs_and_certificates_of_one_processor_hold_on_another(maker, tmp_path):
    run = str(tmp_path / "run")
    trained, certified = commands(
        maker,
        tmp_path,
        ("train", "--width", "4", "--batch-size", "128", "--epochs", "2", "--device", "cpu", "--quiet", "--out", run),
        ("certify", run),
    )
    checked, evaluated = commands(
        OTHER[maker],
        tmp_path,
        ("certify", run, "--check", str(tmp_path / "run" / "certificates.csv")),
        ("evaluate", run),
    )
    assert checked["sound"]
    assert checked["checked"] == certified["images"] == evaluated["images"]
    assert checked["largest_ratio"] == pytest.approx(1, abs=1e-6)
    stored = read_record(tmp_path / "run" / "record.json")["results"]
    one_image = 1.001 / evaluated["images"]
    assert evaluated["clean"] == pytest.approx(stored["clean"], abs=one_image)
    assert evaluated["certified"] == pytest.approx(stored["certified"], abs=one_image)
    assert evaluated["lipschitz_upper_bound"] == pytest.approx(trained["lipschitz_upper_bound"], rel=1e-9)
    assert evaluated["mean_radius"] == pytest.approx(trained["mean_radius"], rel=1e-6)
