"""The largest Jacobian lies between what is measured and what is proved, at the size that each layer sees."""

import torch
from torch import nn

from skewconv.nn import MaxMin, SOC2d
from skewconv.ops import dense_jacobian
from skewconv.reproduce.study import largest_jacobian


def test_the_largest_norm_is_that_of_the_dense_matrix_at_the_layers_own_size() -> None:
    first, second = SOC2d(2, 4, 3, norm_bound=1.0), SOC2d(4, 4, 3, 2, norm_bound=1.5)
    model = nn.Sequential(first, MaxMin(), second, nn.Flatten()).train()
    found = largest_jacobian(model, (2, 8, 8))
    assert model.training
    model.eval()
    # Stride two gives the second layer images of half the side.
    norms = [
        float(torch.linalg.matrix_norm(dense_jacobian(layer.weight.detach().double(), size), 2))
        for layer, size in ((first, (8, 8)), (second, (4, 4)))
    ]
    assert found["layers"] == 2
    assert abs(found["norm_estimate"] - max(norms)) < 1e-3 * max(norms)
    assert found["norm_estimate"] <= found["norm_upper_bound"] <= 1.5 * (1 + 1e-6)
    assert found["truncation_error_taylor_12_terms"] <= 1.5**12 / 479001600 * (1 + 1e-6)
