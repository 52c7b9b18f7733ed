"""A layer of yours is a class with ``forward`` and ``lower``; a primitive a class and a function in each table."""

import numpy as np
import onnxruntime
import pytest
import torch
from flint import arb
from torch import Tensor, nn

from skewconv import export
from skewconv.ball.array import BallArray
from skewconv.ball.layers import Layer
from skewconv.certify import audit, certify_dataset, check_certificates, check_in_balls, radii, register_rounding
from skewconv.certify.audit import facts
from skewconv.certify.ball_intake import register_ball
from skewconv.certify.programs import module_program
from skewconv.errors import ArgumentError, UnboundedModuleError
from skewconv.export.onnx_layers import WRITERS
from skewconv.frozen import freeze, load_frozen, save_frozen
from skewconv.models import LipConvnet
from skewconv.nn import MaxMin, OrthogonalLinear, SLL2d, SOC2d, lipschitz_upper_bound, register_bound
from skewconv.nn.bounds import AffineBound
from skewconv.rigor import UNIT_ROUNDOFF
from tests.certify.oracles import assert_sound_under_attack


class Turned(nn.Module):
    """A layer of yours: x -> U x for an orthogonal U that is trained. It says what it becomes, and nothing else."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.matrix = OrthogonalLinear(features, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x)

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        return self.matrix.lower(input_shape, tol)


class Leaning(nn.Module):
    """A primitive of yours: x -> x - share relu(x), whose slope is between 1 - share and 1."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return x - self.share * torch.relu(x)


@register_bound(Leaning)
def _bound(module: Leaning, shape: tuple[int, ...]) -> float:
    return 1.0


@register_rounding(Leaning)
def _rounding(module: Leaning, shape: tuple[int, ...]):
    # A product and a difference, each right to u of at most |x|.
    return module_program(module, shape, AffineBound(4 * UNIT_ROUNDOFF, 0.0))


@facts.register
def _facts(module: Leaning, shape: tuple[int, ...]) -> dict[str, float]:
    return {"share": module.share}


@register_ball(Leaning)
def _ball(module: Leaning, shape: tuple[int, ...]) -> Layer:
    def run(x: BallArray) -> BallArray:
        positive = x.point(np.maximum(x.mantissa, 0)).scaled(arb(-module.share))
        return x.point(x.mantissa).plus(positive).with_error(x.error)

    return Layer(run, arb(1))


@export.register_plain(Leaning)
def _plain(module: Leaning) -> nn.Module:
    return module


def _onnx(graph, module: Leaning, x: str, layout) -> str:
    return graph.node("Sub", x, graph.node("Mul", graph.node("Relu", x), graph.number(module.share)))


WRITERS[Leaning] = _onnx
SHAPE = (2, 4, 4)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(SOC2d(2, 4, 3), Leaning(0.25), MaxMin(), nn.Flatten(), Turned(64), OrthogonalLinear(64, 3))


def test_they_are_certified_soundly_and_checked_by_both_arithmetics(tmp_path):
    model, images = network().eval(), torch.rand(4, *SHAPE)
    assert float(assert_sound_under_attack(model, images).max()) > 0
    labels = model(images).argmax(1)
    certify_dataset(model, images, labels).write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).problems == ()
    assert check_in_balls(tmp_path, model, images, labels).problems == ()


def test_they_are_frozen_saved_and_loaded(tmp_path):
    x, frozen = torch.rand(3, *SHAPE), freeze(network().eval(), SHAPE)
    assert isinstance(frozen.model[4], nn.Linear)
    again = load_frozen(save_frozen(frozen, tmp_path / "model.safetensors"))
    assert torch.equal(again(x), frozen(x))
    assert isinstance(again.model[1], Leaning)
    assert again.model[1].share == 0.25


def test_they_are_exported_and_audited(tmp_path):
    model, x = network().eval(), torch.rand(3, *SHAPE)
    path = tmp_path / "model.onnx"
    export.onnx(model, path, SHAPE)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["logits"], {"images": x.numpy()})[0], model(x).detach(), atol=1e-3)
    rows = {row["type"]: row for row in audit(model, SHAPE, steps=2)["results"]["layers"]}
    assert rows["Leaning"]["share"] == 0.25
    assert rows["Turned"]["largest_singular_value"] == pytest.approx(1.0)


def test_what_is_registered_is_not_replaced_and_what_is_not_is_refused_by_name():
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sort(1).values

    images, labels = torch.rand(2, 3), torch.tensor([0, 1])
    with pytest.raises(UnboundedModuleError, match=r"(?s)Plain.*sort.*register_bound"):
        radii(Plain(), images, labels)
    register_bound(Plain)(lambda module, shape: 1.0)
    assert lipschitz_upper_bound(Plain(), (3,)) == 1.0
    with pytest.raises(UnboundedModuleError, match=r"Plain.*rounding error is not known.*register_rounding"):
        radii(Plain(), images, labels)
    with pytest.raises(ArgumentError, match="already registered for Plain"):
        register_bound(Plain)(lambda module, shape: 2.0)


class Doubled(SLL2d):
    """Inherits a lowering that is not its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Square(SLL2d):
    """Another way to be built, and nothing else."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3)


class Deeper(LipConvnet):
    """A network whose forward is no longer its body and head."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


def test_a_subclass_inherits_what_is_known_only_while_it_has_no_forward_of_its_own():
    images, labels = torch.rand(2, 2, 4, 4), torch.tensor([0, 1])
    model = nn.Sequential(Doubled(2, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    for ask in (lambda: radii(model, images, labels), lambda: freeze(model, SHAPE)):
        with pytest.raises(UnboundedModuleError, match=r"'0'.*Doubled may compute something else"):
            ask()
    square = nn.Sequential(Square(2), nn.Flatten(), nn.Linear(32, 3))
    plain = nn.Sequential(SLL2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    plain.load_state_dict(square.state_dict())
    assert torch.equal(radii(square, images, labels), radii(plain, images, labels))
    with pytest.raises(UnboundedModuleError, match="Deeper may compute something else"):
        radii(Deeper(5, in_channels=1, input_size=8, width=2), torch.rand(2, 1, 8, 8), labels)
