"""The harness measures what it says, and the literal Algorithm 1 is Algorithm 1."""

import re

import pytest
import torch
import torch.nn.functional as F

from skewconv import bench
from skewconv.algorithm_1 import LiteralSOC, literal
from skewconv.bench import SUITES, peak_bytes, side_by_side
from skewconv.commands.bench import Bench
from skewconv.errors import ArgumentError
from skewconv.models import LipConvnet
from skewconv.nn import SOC2d


def test_contestants_take_turns_and_warmup_is_not_counted():
    order: list[str] = []
    found = side_by_side({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, warmup=1)
    assert order == ["a", "b"] * 4
    assert {name: len(rounds) for name, rounds in found.items()} == {"a": 3, "b": 3}


def test_peak_memory_counts_what_lives_together():
    size = 4 * 1000
    assert peak_bytes(lambda: [torch.zeros(1000) for _ in range(5)]) == 5 * size

    def one_at_a_time():
        for _ in range(5):
            torch.zeros(1000)

    assert peak_bytes(one_at_a_time) == size
    x = torch.zeros(1000)
    assert peak_bytes(lambda: x.view(10, 100).add_(1)) == 0


@pytest.mark.parametrize("circular", [False, True])
def test_the_literal_layer_is_the_papers_algorithm(circular):
    layer = SOC2d(2, 4, 3, stride=2, padding_mode="circular" if circular else "zeros")
    plain = LiteralSOC(layer, eval_degree=12).double()
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    for _ in range(500):
        plain(x)
    reference = SOC2d.from_filter(
        plain.filter, 2, 4, stride=2, padding_mode=layer.padding_mode, series="taylor", eval_degree=12, bias=False
    ).eval()
    torch.testing.assert_close(plain.eval()(x), reference(x), atol=1e-8, rtol=0)


def test_a_literal_model_has_the_same_shapes_and_trains():
    model = literal(LipConvnet(5, width=2))
    assert not any(isinstance(m, SOC2d) for m in model.modules())
    logits = model(torch.rand(2, 3, 32, 32))
    F.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert all(p.grad is not None for p in model.parameters())


SMALL = {
    "training": lambda: bench.training(5, batch=2, width=2, rounds=1),
    "inference": lambda: bench.inference("circular", batch=2, width=2, rounds=1),
    "beside-bcop": lambda: bench.beside_bcop(depths=(5,), batch=2, width=2, rounds=1),
    "layers": lambda: bench.layers(batch=2, channels=4, side=8, rounds=1),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_suite_runs_small_and_states_its_proof(name):
    report = SMALL[name]()
    assert all(entry.seconds > 0 and entry.multiply_adds for entry in report.entries)
    text = str(report)
    for claim in report.claims:
        assert claim.what in text
        if claim.what.startswith("proven error"):
            assert claim.met


def test_unknown_suites_are_refused_and_the_help_names_the_others():
    with pytest.raises(ArgumentError, match="training-5"):
        Bench(("everything",), quiet=True).run()
    assert all(re.search(rf"\b{name}\b", Bench.__doc__) for name in SUITES)
