"""The audit: proven bounds above measured ones, for our networks and for plain modules; refusals by name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skewconv.certify import audit, format_audit
from skewconv.certify.audit import lipschitz_lower_bound
from skewconv.errors import ShapeError, UnboundedModuleError
from skewconv.models import resnet18
from tests.certify.conftest import digits_split, train


class PlainResNet(nn.Module):
    """As many are, with its addition in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        x = self.stem(x)
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out += x
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(F.relu(out), 1), 1))


def test_bounds_of_a_trained_plain_resnet_hold_for_every_layer():
    torch.manual_seed(0)
    images, labels = digits_split()
    plain = train(PlainResNet(), images[:512], labels[:512], 2)
    record = audit(plain, (1, 8, 8), steps=30)
    rows = record["results"]["layers"]
    assert [row["type"] for row in rows].count("Conv2d") == 3
    for row in rows:
        assert row["lipschitz_lower_bound"] <= row["lipschitz_upper_bound"], row["name"]
        if row["type"] in ("Conv2d", "Linear", "BatchNorm2d"):
            # Ascent, full matrix and proof agree, but for what a small image loses at its border..
            assert row["largest_singular_value"] <= row["lipschitz_upper_bound"] * (1 + 1e-12)
            assert row["lipschitz_lower_bound"] <= row["largest_singular_value"] * (1 + 1e-9)
            assert row["lipschitz_lower_bound"] > 0.9 * row["largest_singular_value"]
            assert row["lipschitz_upper_bound"] < 1.6 * row["largest_singular_value"]
        if row["type"] == "Conv2d":
            assert row["norm_estimate"] <= min(row["norm_upper_bounds"].values())
            assert set(row["norm_upper_bounds"]) == {"symbol", "gram", "fantastic-four"}
    network = record["results"]["network"]
    assert 0 < network["lipschitz_lower_bound"] < network["lipschitz_upper_bound"]
    assert plain.fc.weight.dtype == torch.float32  # only a copy was converted


def test_our_network_is_audited_layer_by_layer(digits):
    record = audit(digits.model, (1, 8, 8), steps=15)
    rows = {row["name"]: row for row in record["results"]["layers"]}
    assert next(iter(rows)) == "body.0"
    assert list(rows)[-1] == "head"
    for row in rows.values():
        assert row["lipschitz_lower_bound"] <= row["lipschitz_upper_bound"]
        if row["type"] == "SOC2d":
            assert row["smallest_singular_value"] > 1 - 1e-6
            assert row["largest_singular_value"] <= 1 + 1e-12
            assert row["truncation_error"] <= 1e-6
            assert row["degree"] >= 5
            # What the paper reports: real norms at most 1.8 where the bound says 2.1.
            assert row["norm_estimate"] < 1.8
            assert row["norm_upper_bounds"]["symbol"] <= row["interval"] * (1 + 1e-9)
    network = record["results"]["network"]
    assert 0.5 * network["lipschitz_upper_bound"] < network["lipschitz_lower_bound"] <= network["lipschitz_upper_bound"]
    text = format_audit(record)
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for name in (*rows, "network", "\nnorm "))


def test_blocks_that_state_a_bound_have_a_row_beside_their_layers():
    record = audit(resnet18(width=2, conv="soc", in_channels=1), (1, 8, 8), steps=1, dense_limit=0)
    kinds = [row["type"] for row in record["results"]["layers"]]
    assert kinds.count("ResidualBlock") == 8
    assert kinds.count("BatchNorm2d") == 17
    for row in record["results"]["layers"]:
        assert row["lipschitz_lower_bound"] <= row["lipschitz_upper_bound"]


def test_long_names_are_cut_to_fit_80_columns():
    row = {"lipschitz_upper_bound": 12.3456789, "lipschitz_lower_bound": 11.3456789, "type": "AVeryLongNameOfALayer2d"}
    known = {"smallest_singular_value": 0.125, "largest_singular_value": 123.5, "degree": 11, "truncation_error": 1e-7}
    layers = [{**row, **known, "name": f"stages.{number}.blocks.{number}.convolution.inner"} for number in range(12)]
    text = format_audit({"results": {"layers": layers, "network": row}})
    assert max(map(len, text.splitlines())) <= 80
    assert "inner" in text
    assert "0.125-123.5" in text


def test_what_cannot_be_bounded_is_refused_by_name():
    with pytest.raises(UnboundedModuleError, match=r"'1\.0' .*LayerNorm"):
        audit(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4))), (4,), steps=1)

    class Squares(nn.Module):
        def forward(self, x):
            return x * x

    with pytest.raises(UnboundedModuleError, match=r"(?s)'1.*mul"):
        audit(nn.Sequential(nn.Linear(4, 4), Squares()), (4,), steps=1)
    with pytest.raises(ShapeError):
        audit(nn.Linear(4, 4), (5,))


def test_measured_bounds_find_the_norm_of_a_linear_map_and_the_slope_of_a_curve():
    matrix = torch.randn(6, 5, dtype=torch.float64)
    found = lipschitz_lower_bound(lambda x: x @ matrix.T, (5,), steps=200)
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    assert norm * (1 - 1e-6) < found <= norm
    assert lipschitz_lower_bound(torch.sin, (3,), steps=50) <= 1
    assert lipschitz_lower_bound(lambda x: torch.zeros_like(x), (3,)) == 0.0
