"""Certifying costs at most three plain evaluations; measured in processor time, which other programs do not disturb."""

import time

import pytest
import torch

from skewconv.certify import Certifier
from skewconv.models import LipConvnet


@pytest.mark.slow
def test_certifying_lipconvnet_5_takes_at_most_three_float32_evaluations():
    model = LipConvnet(5).eval().requires_grad_(False)
    images = torch.rand(256, 3, 32, 32)
    certifier = Certifier(model, (3, 32, 32))

    def plain(part: torch.Tensor) -> None:
        with torch.no_grad():
            model(part)

    def seconds(evaluate) -> float:
        evaluate(images[:8])  # what is prepared once is not what ten thousand images cost
        start = time.process_time()
        for part in images.split(128):
            evaluate(part)
        return time.process_time() - start

    labels = torch.zeros(128, dtype=torch.int64)
    ratios = [seconds(lambda part: certifier(part, labels[: len(part)])) / seconds(plain) for _ in range(3)]
    assert sorted(ratios)[1] <= 3, ratios
