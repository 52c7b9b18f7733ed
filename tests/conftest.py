"""Settings shared by all tests: one thread a worker, reproducible random numbers, bounded hypothesis.

Three things are asserted to the bit, because they hold on any processor, with any number of threads:

- *moved*: values that are only copied, permuted, negated, compared, stored or read back;
- *exact*: values whose every operation is exact, or rounded once and correctly (whole numbers, powers of two, one
  elementwise operation after the other);
- *repeated*: the same computation made twice on one machine, with the same shapes, layout and threads.

Everything else states a tolerance: matrix products, convolutions and long sums round by kernel, and the kernel depends
on the processor, the threads and the size of the batch.
"""

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
