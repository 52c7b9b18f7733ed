"""Attempts to obtain a certificate that does not hold, by models that compute something else than they say."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from skewconv.certify import Certifier, radii
from skewconv.errors import NotFiniteError, UnboundedModuleError
from skewconv.frozen import freeze
from skewconv.models import LipConvnet
from skewconv.nn import CPL2d, GroupSort, MaxMin, lipschitz_upper_bound, register_bound
from tests.certify.oracles import in_float64

SHAPE = (1, 8, 8)


def network() -> LipConvnet:
    return LipConvnet(5, in_channels=1, input_size=8, width=4)


def linear(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *between, nn.Linear(16, 3))


def assert_refused(model: nn.Module, reason: str) -> None:
    with pytest.raises(UnboundedModuleError, match=reason):
        radii(model, torch.rand(2, *SHAPE), torch.tensor([0, 1]))


def test_a_layer_that_is_held_twice_runs_twice():
    relu, square = nn.ReLU(), nn.Linear(16, 16)
    for model in (linear(relu, square, relu), linear(square, square), linear(square, nn.Sequential(square))):
        images = torch.rand(4, *SHAPE)
        with torch.no_grad():
            expected = in_float64(model)(images.double())
        torch.testing.assert_close(Certifier(model, SHAPE).logits(images), expected, rtol=0, atol=1e-12)


def test_a_child_that_the_forward_does_not_use_is_not_run():
    model = network()
    plain = Certifier(model, SHAPE)
    model.extra = nn.Linear(10, 10)
    found, images = Certifier(model, SHAPE), torch.rand(2, *SHAPE)
    assert found.lipschitz == plain.lipschitz
    assert torch.equal(found.logits(images), plain.logits(images))  # repeated


def test_a_layer_that_mixes_the_images_of_a_batch_is_refused():
    with pytest.raises(UnboundedModuleError, match="mix"):
        Certifier(nn.Sequential(GroupSort(None, dim=0), nn.Flatten(), nn.Linear(64, 3)), SHAPE)


class AlwaysTraining(nn.Sequential):
    """As for dropout at test time."""

    def train(self, mode=True):
        return super().train(True)


@pytest.mark.parametrize("layer", [nn.Dropout(0.01), CPL2d(1, 1, 3)], ids=["dropout", "CPL"])
def test_a_part_that_stays_in_training_mode_is_refused(layer):
    model = nn.Sequential(AlwaysTraining(layer), nn.Flatten(), nn.Linear(64, 3)).eval()
    assert_refused(model, "stays in training mode")
    with pytest.raises(UnboundedModuleError, match="stays in training mode"):
        freeze(model, SHAPE)


class Rolled(nn.Module):
    """Gives each image of a batch the logits of another."""

    def __init__(self, images):
        super().__init__()
        self.images, self.head = images, nn.Linear(64, 3)

    def forward(self, x):
        return self.head(torch.roll(x, self.images, 0).flatten(1))


@pytest.mark.parametrize("images", [1, 2, 6, 35])
def test_images_that_change_places_in_a_batch_are_noticed(images):
    with pytest.raises(UnboundedModuleError):
        Certifier(Rolled(images), SHAPE)


class Described(LipConvnet):
    """Computes what its base does, and shows and stores itself otherwise."""

    def __str__(self):
        return "a network"

    def state_dict(self, *args, **kwargs):
        return super().state_dict(*args, **kwargs)


def test_a_subclass_that_only_shows_and_stores_itself_otherwise_is_certified():
    model = Described(5, in_channels=1, input_size=8, width=4)
    assert Certifier(model, SHAPE).lipschitz == pytest.approx(lipschitz_upper_bound(model, SHAPE), rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_model_that_cannot_be_copied_is_refused_in_words():
    with pytest.raises(UnboundedModuleError, match="cannot be copied in float64"):
        Certifier(nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 3))), SHAPE)


def test_a_class_that_only_has_the_name_of_a_known_one_is_refused():
    class ReLU(nn.Module):
        def forward(self, x):
            return x * x

    model = linear(ReLU())
    with pytest.raises(UnboundedModuleError, match="ReLU"):
        Certifier(model, SHAPE)


def test_layers_in_place_leave_the_images_alone_and_their_norms_right():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 3))
    images, labels = torch.randn(4, 64, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    before = images.clone()
    found = radii(model, images, labels, input_range=None)
    assert torch.equal(images, before)  # moved
    model[0].inplace = False
    assert torch.equal(found, radii(model, images, labels, input_range=None))  # repeated


def test_autocast_and_the_default_dtype_do_not_reach_a_certificate():
    model, images, labels = network(), torch.rand(4, *SHAPE), torch.arange(4)
    expected = Certifier(model, SHAPE)(images, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Certifier(model, SHAPE)(images, labels)
    assert torch.equal(found.radii, expected.radii)  # repeated, and below
    torch.set_default_dtype(torch.float16)
    try:
        assert torch.equal(Certifier(model, SHAPE)(images, labels).radii, expected.radii)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("std", [0.0, -0.01, float("nan"), float("inf")])
def test_a_tampered_deviation_never_makes_a_radius(std: float):
    model = network()
    model.body[0].std.fill_(std)
    with pytest.raises(NotFiniteError):
        radii(model, torch.rand(2, *SHAPE), torch.tensor([0, 1]))


def test_a_padding_edited_after_the_fact_does_not_hide_the_one_in_use():
    wide = nn.Conv2d(1, 1, 3, padding=3, padding_mode="circular")
    wide.padding = (1, 1)
    with pytest.raises(UnboundedModuleError, match="repeated"):
        lipschitz_upper_bound(wide, (1, 4, 4))
    fits = nn.Conv2d(1, 1, (3, 5), padding="same", padding_mode="circular")
    assert lipschitz_upper_bound(fits, (1, 6, 6)) > 0


class Traced(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Sum(nn.Module):
    def forward(self, x, y):
        return x + y


register_bound(Sum)(lambda module, shape: 1.0)


class SumOfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum = Sum()

    def forward(self, x):
        return self.sum(x, 100 * x)


@pytest.mark.parametrize(
    "model",
    [
        Traced(lambda x: torch.div(x, 0.5, rounding_mode="floor")),
        Traced(lambda x: x.div(0.5, rounding_mode="trunc")),
        Traced(lambda x: x.view(torch.int64) * 1e-15),
        Traced(lambda x: torch.mean(x, 1, dtype=torch.float16)),
        Traced(lambda x: F.max_pool2d(x, 2, 2, 0, 1, False, True)[1] * 1.0),
        Traced(lambda x: torch.cat(x.chunk(2, 1) + x.chunk(2, 1), 1)),
        SumOfTwo(),
    ],
)
def test_operations_that_only_look_bounded_are_refused(model: nn.Module):
    with pytest.raises(UnboundedModuleError):
        lipschitz_upper_bound(model, (2, 4, 4))


def test_a_forward_on_the_instance_is_refused():
    model = network()
    model.body[1].forward = lambda x: 0.01 * x
    plain = linear(nn.ReLU())
    plain[2].forward = lambda x: 10 * x
    for tampered in (model, plain):
        assert_refused(tampered, "forward was replaced")
        with pytest.raises(UnboundedModuleError, match="forward was replaced"):
            lipschitz_upper_bound(tampered, SHAPE)
    with pytest.raises(UnboundedModuleError, match="forward was replaced"):
        freeze(model, SHAPE)


def test_hooks_are_refused_also_those_on_all_modules():
    model = linear(nn.ReLU())
    handle = model[2].register_forward_hook(lambda module, given, result: 10 * result)
    assert_refused(model, "hooks")
    handle.remove()
    handle = register_module_forward_hook(lambda module, given, result: 10 * result)
    try:
        assert_refused(model, "hooks")
        with pytest.raises(UnboundedModuleError, match="hooks"):
            lipschitz_upper_bound(model, SHAPE)
    finally:
        handle.remove()
    hooked = network()
    hooked.body[1].register_forward_hook(lambda module, given, result: 10 * result)
    with pytest.raises(UnboundedModuleError, match="hooks"):
        freeze(hooked, SHAPE)


class TenTimes(MaxMin):
    """Inherits a bound that is not its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * x


class Shown(MaxMin):
    """Shows itself otherwise, and computes the same."""

    def extra_repr(self) -> str:
        return "shown"


def test_a_bound_is_inherited_by_a_class_that_has_no_forward_of_its_own():
    assert_refused(linear(TenTimes()), "something else than MaxMin")
    torch.manual_seed(0)
    model = linear(Shown())
    plain = linear(MaxMin())
    plain.load_state_dict(model.state_dict())
    images, labels = torch.rand(2, *SHAPE), torch.tensor([0, 1])
    assert torch.equal(radii(model, images, labels), radii(plain, images, labels))
