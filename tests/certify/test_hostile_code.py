"""What is noticed of code that was put in the place of what is known: hooks, a forward on the instance, a subclass."""

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from skewconv.certify import radii
from skewconv.errors import UnboundedModuleError
from skewconv.frozen import freeze
from skewconv.nn import MaxMin, lipschitz_upper_bound
from tests.certify.refusals import SHAPE, assert_refused, linear, network


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
