"""A layer from elsewhere takes part by the same methods as ours, or by the same registry as PyTorch's own."""

import pytest
import torch
from torch import Tensor, nn

from skewconv.certify import audit, certify_dataset, radii
from skewconv.errors import ArgumentError, UnboundedModuleError
from skewconv.frozen import freeze, load_frozen, save_frozen
from skewconv.models import LipConvnet
from skewconv.nn import MaxMin, OrthogonalLinear, SLL2d, SOC2d, register_layer
from skewconv.nn.protocol import (
    Float64Program,
    Growth,
    carried,
    exact_program,
    float64_program,
    module_program,
    register_bound,
    register_rounding,
    storable,
)
from skewconv.rigor import UNIT_ROUNDOFF
from tests.certify.oracles import assert_sound_under_attack


@storable("share")
class Leaning(nn.Module):
    """x -> x - share relu(x): a layer of yours, whose slope is between 1 - share and 1."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return x - self.share * torch.relu(x)

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        return 1.0

    def float64_program(self, input_shape: tuple[int, ...]) -> Float64Program:
        # A product and a difference, each right to u of at most |x|.
        return module_program(self, input_shape, Growth(4 * UNIT_ROUNDOFF, 0.0))

    def audit_facts(self, input_shape: tuple[int, ...]) -> dict[str, float]:
        return {"share": self.share}


class Mirrored(nn.Module):
    """A layer of another package, which cannot be given methods."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


register_layer(
    Mirrored,
    lipschitz_upper_bound=lambda module, shape: 1.0,
    float64_program=exact_program,
    frozen_form=lambda module, input_shape, output_shape, tol: nn.Identity() if input_shape[-1] == 1 else Mirrored(),
    audit_facts=lambda module, shape: {"width": shape[-1]},
    is_affine=True,
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(SOC2d(2, 4, 3), Leaning(0.25), Mirrored(), MaxMin(), nn.Flatten(), OrthogonalLinear(64, 3))


def test_it_is_certified_soundly():
    found = assert_sound_under_attack(network(), torch.rand(4, 2, 4, 4))
    assert float(found.max()) > 0
    assert certify_dataset(network(), torch.rand(4, 2, 4, 4), torch.zeros(4, dtype=torch.int64)).radius.shape == (4,)


def test_it_is_frozen_saved_and_loaded(tmp_path):
    model = network().eval()
    model[2] = nn.Identity()
    x = torch.rand(3, 2, 4, 4)
    frozen = freeze(model, (2, 4, 4))
    again = load_frozen(save_frozen(frozen, tmp_path / "model.safetensors"))
    assert torch.equal(again(x), frozen(x))
    assert isinstance(again.model[1], Leaning)
    assert again.model[1].share == 0.25
    # A frozen form by rule; and what no rule stores is refused by name.
    assert isinstance(freeze(nn.Sequential(Mirrored()), (2, 4, 1)).model[0], nn.Identity)
    with pytest.raises(ArgumentError, match="Mirrored, which cannot be saved"):
        save_frozen(freeze(network(), (2, 4, 4)), tmp_path / "other.safetensors")


def test_it_has_its_row_in_an_audit():
    rows = {row["type"]: row for row in audit(network(), (2, 4, 4), steps=2)["results"]["layers"]}
    assert rows["Leaning"]["share"] == 0.25
    assert "largest_singular_value" not in rows["Leaning"]
    assert rows["Mirrored"]["width"] == 4
    assert rows["Mirrored"]["largest_singular_value"] == 1.0


def test_what_is_registered_is_checked_and_not_replaced():
    with pytest.raises(ArgumentError, match="already registered for Mirrored"):
        register_layer(Mirrored, lipschitz_upper_bound=lambda module, shape: 2.0)
    with pytest.raises(ArgumentError, match=r"rules must be among .*audit_facts.*got bound"):
        register_layer(Mirrored, bound=lambda module, shape: 2.0)

    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sort(1).values

    with pytest.raises(UnboundedModuleError, match=r"Plain.*(rounding error is not known|sort).*register_layer"):
        float64_program(Plain(), (3,))
    register_bound(Plain)(lambda module, shape: 1.0)
    register_rounding(Plain)(exact_program)
    assert float64_program(Plain(), (3,)).lipschitz == 1.0
    with pytest.raises(ArgumentError, match="already registered"):
        register_rounding(Plain)(exact_program)


class Doubled(SLL2d):
    """Inherits a program that is not its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Rescaled(SLL2d):
    """Overrides what the proof of its base rests on."""

    def _scale_lower_bound(self, sources) -> Tensor:
        return 100 * super()._scale_lower_bound(sources)


class Square(SLL2d):
    """Another way to be built, and nothing else."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3)


class Deeper(LipConvnet):
    """A network whose forward is no longer its body and head."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


def test_a_subclass_inherits_what_is_known_only_while_it_computes_the_same():
    images, labels = torch.rand(2, 2, 4, 4), torch.tensor([0, 1])
    for kind, overridden in ((Doubled, "forward"), (Rescaled, "_scale_lower_bound")):
        model = nn.Sequential(kind(2, 2, 3), nn.Flatten(), nn.Linear(32, 3))
        with pytest.raises(UnboundedModuleError, match=rf"'0'.*{kind.__name__} may compute something.*{overridden}"):
            radii(model, images, labels)
        with pytest.raises(ArgumentError, match=rf"'0' cannot be frozen: {kind.__name__} may compute something else"):
            freeze(model, (2, 4, 4))
    assert carried(Square(2), "float64_program") is not None
    square = nn.Sequential(Square(2), nn.Flatten(), nn.Linear(32, 3))
    plain = nn.Sequential(SLL2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    plain.load_state_dict(square.state_dict())
    assert torch.equal(radii(square, images, labels), radii(plain, images, labels))
    with pytest.raises(UnboundedModuleError, match="Deeper may compute something else"):
        radii(Deeper(5, in_channels=1, input_size=8, width=2), torch.rand(2, 1, 8, 8), labels)


def test_a_layer_that_is_held_twice_is_frozen_in_both_places():
    layer = SOC2d(2, 2, 3)
    model = nn.Sequential(layer, MaxMin(), layer).eval()
    frozen, x = freeze(model, (2, 4, 4)), torch.rand(2, 2, 4, 4)
    assert not any(isinstance(module, SOC2d) for module in frozen.modules())
    torch.testing.assert_close(frozen(x), model(x), atol=1e-5, rtol=0)
