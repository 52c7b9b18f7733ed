"""The summary counts what is there and says what it does not know."""

import torch
from torch import nn

from skewconv.models import LipConvnet, resnet18, summary
from skewconv.nn import lipschitz_upper_bound


def test_rows_add_up_to_the_model():
    model = LipConvnet(5, width=2).train()
    table = model.summary()
    *rows, total = table.rows
    assert [row.name for row in rows] == [f"body.{i}" for i in range(12)] + ["head"]
    assert sum(row.parameters for row in rows) == total.parameters == sum(p.numel() for p in model.parameters())
    assert sum(row.operations for row in rows) == total.operations
    assert rows[1].output_shape == (4, 16, 16)
    assert total.output_shape == (10,)
    assert total.bound == lipschitz_upper_bound(model, (3, 32, 32))
    assert all(m.training for m in model.modules())
    text = str(table)
    for word in ("layer", "parameters", "multiply-adds", "Lipschitz", "SOC2d", "4 x 16 x 16", "LipConvnet"):
        assert word in text


def test_operations_are_multiply_adds_of_one_input():
    table = summary(nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Flatten(), nn.Linear(5 * 16, 7)), (3, 4, 4))
    assert table.rows[0].operations == 3 * 5 * 9 * 16
    assert table.rows[2].operations == 5 * 16 * 7


def test_blocks_that_state_a_bound_are_one_row_and_unknown_bounds_are_said_to_be():
    assert sum(row.kind == "ResidualBlock" for row in summary(resnet18(width=2), (3, 8, 8)).rows) == 8
    table = summary(nn.Sequential(nn.Linear(4, 4), nn.Hardswish()), (4,))
    assert table.rows[1].bound is None
    assert table.rows[-1].bound is None
    assert "unknown" in str(table)


def test_modules_are_left_as_they_were():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout()).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    summary(model, (3, 4, 4))
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())  # moved
    assert model.training
    assert not model[0]._forward_hooks
