"""Settings shared by all tests: one thread a worker, reproducible random numbers, bounded hypothesis.

Three things are asserted to the bit, because they hold on any processor, with any number of threads:

- *moved*: values that are only copied, permuted, negated, compared, stored or read back;
- *exact*: values whose every operation is exact, or rounded once and correctly (whole numbers, powers of two, one
  elementwise operation after the other);
- *repeated*: the same computation made twice on one machine, with the same shapes, layout and threads.

Everything else states a tolerance: matrix products, convolutions and long sums round by kernel, and the kernel depends
on the processor, the threads and the size of the batch. `make test-small-cpu` runs the numerical tests on other ones.
"""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "skewconv", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("skewconv")

# PyTorch's compiler gives wrong numbers where a cache that was filled under one instruction set is read under another.
_KERNELS = f"skewconv-inductor-{torch.backends.cpu.get_cpu_capability()}".replace(" ", "-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / _KERNELS)

if "PYTEST_XDIST_WORKER" in os.environ and "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def call(capsys):
    """Runs a command: its status, and what it printed and wrote to stderr."""
    from skewconv.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run on the digits, made by the command once for all tests; its parent holds the cache."""
    from skewconv.cli import main

    folder = tmp_path_factory.mktemp("digits") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKEWCONV_CACHE", str(folder.parent / "cache"))
        words = ["train", "--width", "4", "--batch-size", "128", "--epochs", "2", "--device", "cpu", "--quiet"]
        assert main([*words, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def _beside_the_digits(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, and the cache that holds the digits."""
    monkeypatch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
    monkeypatch.chdir(tmp_path)
