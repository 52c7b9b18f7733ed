"""Modules of somebody's own, bounded by the graph of their forward: what is proven holds, the rest is refused."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skewconv import nn as snn
from skewconv.certify import Certifier
from skewconv.errors import UnboundedModuleError
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.lowering import graph_parts
from skewconv.nn.module_tools import float64_copy
from tests.certify.oracles import float64_program


class Small(nn.Module):
    """Every kind of operation between layers, on vectors of four."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(5, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor([0.3, -0.7, 0.1, 0.9]))
        self.register_buffer("shift", torch.rand(4))

    def forward(self, x):
        h = F.relu(self.first(x - self.shift))
        y = 0.3 * x + self.scale * h / 0.7
        y += h
        a, b = y.chunk(2, 1)
        return self.last(torch.cat([b - a, -a, y.mean(1, keepdim=True)], 1))


def _exactly(model: Small, x: list[float]) -> list[Fraction]:
    def product(matrix, vector):
        return [sum(Fraction(w) * v for w, v in zip(row, vector, strict=True)) for row in matrix.tolist()]

    def each(function, *vectors):
        return [function(*map(Fraction, entries)) for entries in zip(*vectors, strict=True)]

    h = product(model.first.weight, each(lambda u, v: u - v, x, model.shift.tolist()))
    h = each(lambda u, v: max(Fraction(0), u + v), h, model.first.bias.tolist())
    third, seventh = Fraction(0.3), Fraction(0.7)
    y = each(lambda u, v, w: third * u + v * w / seventh + w, x, model.scale.tolist(), h)
    a, b = y[:2], y[2:]
    return product(model.last.weight, [b[0] - a[0], b[1] - a[1], -a[0], -a[1], sum(y) / 4])


def test_a_program_errs_by_no_more_than_it_says_and_a_bound_is_above_every_slope():
    torch.manual_seed(0)
    model = float64_copy(Small())
    program = float64_program(model, (4,))
    images = torch.cat([torch.rand(8, 4, dtype=torch.float64), 1e6 * torch.randn(8, 4, dtype=torch.float64)])
    found = program.run(images.clone())
    torch.testing.assert_close(found, model(images), rtol=1e-12, atol=1e-12)
    for x, y in zip(images, found, strict=True):
        exact = _exactly(model, x.tolist())
        error = sum((Fraction(a) - b) ** 2 for a, b in zip(y.tolist(), exact, strict=True))
        bound = program.bounds.error.at(float(x.norm()) * (1 + 1e-12))
        assert error <= Fraction(bound) ** 2
        assert bound < 1e-13 * (1 + float(x.norm()))
        assert sum(value**2 for value in exact) <= Fraction(program.bounds.norm.at(float(x.norm()) * (1 + 1e-12))) ** 2
    slopes = torch.func.vmap(torch.func.jacrev(lambda x: model(x[None])[0]))(images)
    largest = float(torch.linalg.matrix_norm(slopes, 2).max())
    assert largest <= program.bounds.lipschitz < 8 * largest
    assert lipschitz_upper_bound(model, (4,)) == pytest.approx(program.bounds.lipschitz, rel=1e-9)


class Plain(nn.Module):
    """A network as people write it, without branches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 4, 3, padding=1), snn.SOC2d(4, 4, 3), nn.Linear(16, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x), inplace=True), 2)
        x = F.dropout(torch.relu(self.conv2(x)), 0.3, self.training)
        x = self.drop(F.adaptive_avg_pool2d(x, (2, 2)))
        return self.fc(x.view(x.size(0), -1))


def test_a_forward_without_branches_is_the_chain_of_its_layers():
    torch.manual_seed(0)
    own = Plain()
    chain = nn.Sequential(own.conv1, nn.ReLU(), nn.MaxPool2d(2), own.conv2, nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    chain.extend([nn.Flatten(), own.fc])
    names = [name for name, _ in graph_parts(own.eval())]
    assert {"conv1", "conv2", "fc"} <= set(names)
    certifiers = [Certifier(model, (1, 8, 8)) for model in (own, chain)]
    assert certifiers[0].lipschitz == pytest.approx(certifiers[1].lipschitz, rel=1e-9)
    torch.testing.assert_close(certifiers[0].pair_bounds, certifiers[1].pair_bounds, rtol=1e-9, atol=0)
    assert certifiers[0].rounding.slope == pytest.approx(certifiers[1].rounding.slope, rel=1e-6)
    assert not own.training  # left as it was


class Own(nn.Module):
    """A module whose forward is any function of itself and x."""

    def __init__(self, function, **parts) -> None:
        super().__init__()
        self.function = function
        self.linear, self.relu, self.norm = nn.Linear(3, 3), nn.ReLU(inplace=True), nn.LayerNorm(3)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        return self.function(self, x)


def _changed_after_it_was_made(m, x):
    y = m.linear(x)
    y.mul_(10)
    return y


def _changed_through_a_view(m, x):
    y = m.linear(x)
    y.view(-1, 3).mul_(2)
    return y + x


def _changed_and_used(m, x):
    y = m.linear(x)
    z = y
    z += x
    return y + z


def _changed_by_a_layer(m, x):
    y = m.linear(x)
    return m.relu(y) + y


def _changes_a_buffer(m, x):
    m.count.add_(1)
    return x + m.count


REFUSED = {
    "product": (lambda m, x: x * m.linear(x), "mul"),
    "product with itself": (lambda m, x: x * x, "mul"),
    "matrix of itself": (lambda m, x: F.linear(x, x), "linear|mixed"),
    "norm": (lambda m, x: x / x.norm(), "norm|mixed"),
    "square": (lambda m, x: m.linear(x).pow(2), "pow"),
    "exponential": (lambda m, x: torch.exp(x), "exp"),
    "number of the input": (lambda m, x: x * x.mean((1,)).max().item(), "max|number"),
    "number by item": (lambda m, x: x * x.mean(1, keepdim=True)[0, 0].item(), "batch|number"),
    "repeats": (lambda m, x: m.linear(x)[:, [0, 0, 1]], "repeat"),
    "expands": (lambda m, x: x.repeat(1, 2), "repeat"),
    "mean of the batch": (lambda m, x: x - x.mean(0, keepdim=True), "batch"),
    "moves the batch": (lambda m, x: m.linear(x).t(), "known|batch"),
    "depends on the batch size": (lambda m, x: x / x.size(0), "batch"),
    "turns the batch": (lambda m, x: m.linear(x).flip(0), "batch"),
    "branch on values": (lambda m, x: x if x.sum() > 0 else 2 * x, "traced"),
    "numbers drawn": (lambda m, x: x + torch.randn(3), "tensor of its own"),
    "numbers drawn alike": (lambda m, x: x + torch.randn_like(x), "randn_like|drawn"),
    "a layer without a bound": (lambda m, x: m.norm(x) + x, "norm.*LayerNorm"),
    "two results": (lambda m, x: (x, m.linear(x)), "one tensor"),
    "a constant": (lambda m, x: m.count, "one tensor"),
    "changed after it was made": (_changed_after_it_was_made, "in place"),
    "changed through a view": (_changed_through_a_view, "in place"),
    "changed and used": (_changed_and_used, "in place"),
    "changed by a layer": (_changed_by_a_layer, "in place"),
    "changes a buffer": (_changes_a_buffer, "in place"),
    "divides by zero": (lambda m, x: x / m.count, "zero"),
    "another precision": (lambda m, x: x.float() + x, "precision|known"),
    "rounded quotient": (lambda m, x: torch.div(x, 0.5, rounding_mode="floor"), "div"),
    "bits of another type": (lambda m, x: x.view(torch.int64) * 1e-15, "type|precision"),
    "parts twice": (lambda m, x: torch.cat(x.split(2, 1) + x.split(2, 1), 1), "repeat|twice|cat"),
    "different axes": (lambda m, x: m.linear(x) + x.mean((1,)), "batch|axes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_graph_does_not_know_is_refused_by_name(case):
    function, reason = REFUSED[case]
    model = nn.Sequential(nn.Linear(3, 3), Own(function))
    with pytest.raises(UnboundedModuleError, match=rf"(?s)'1.*Own.*(?:{reason})"):
        lipschitz_upper_bound(model, (3,))
    with pytest.raises(UnboundedModuleError, match=f"(?s){reason}"):
        Certifier(model, (3,))


def test_what_has_a_bound_and_no_rounding_error_is_bounded_and_not_certified():
    model = Own(lambda m, x: x + torch.tanh(m.linear(x)))
    bound = 1 + float(torch.linalg.matrix_norm(model.linear.weight.detach(), 2))
    assert lipschitz_upper_bound(model, (3,)) == pytest.approx(bound, rel=1e-5)
    with pytest.raises(UnboundedModuleError, match=r"tanh.*rounding error is not known"):
        Certifier(model, (3,))


def test_a_call_of_its_own_is_refused_as_no_graph_shows_it():
    class Rare(nn.Module):
        def forward(self, x):
            return 2 * x

        def __call__(self, x):
            y = super().__call__(x)
            return y if x.abs().max() < 1e6 else 100 * y

    with pytest.raises(UnboundedModuleError, match="__call__"):
        lipschitz_upper_bound(Rare(), (3,))
