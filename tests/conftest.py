"""Settings shared by all tests: one thread a worker, reproducible random numbers, bounded hypothesis."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "skewconv", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("skewconv")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
