"""Attempts to obtain a certificate that does not hold, by code or tensors put in the place of those that are known."""

import functools
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from skewconv.certify import Certifier, radii
from skewconv.errors import UnboundedModuleError
from skewconv.frozen import freeze
from skewconv.nn import MaxMin, SOC2d, lipschitz_upper_bound
from skewconv.nn.protocol import exact_program
from tests.certify.refusals import SHAPE, assert_refused_by_both_paths, linear, network
from tests.torch_versions import needs_the_compiler


def test_methods_replaced_on_an_instance_are_refused():
    for name in ("forward", "lipschitz_upper_bound", "polynomial"):
        model = network()
        setattr(model.body[1], name, lambda x: 0.01)
        assert_refused_by_both_paths(model, f"{name} was replaced")
        with pytest.raises(UnboundedModuleError, match=f"{name} was replaced"):
            lipschitz_upper_bound(model, SHAPE)
    plain = linear(nn.ReLU())
    plain[2].lipschitz_upper_bound = lambda shape: 0.01
    assert_refused_by_both_paths(plain, "lipschitz_upper_bound was replaced")


def test_hooks_are_refused_also_those_on_all_modules():
    model = linear(nn.ReLU())
    handle = model[2].register_forward_hook(lambda module, given, result: 10 * result)
    assert_refused_by_both_paths(model, "hooks")
    handle.remove()
    handle = register_module_forward_hook(lambda module, given, result: 10 * result)
    try:
        assert_refused_by_both_paths(model, "hooks")
        with pytest.raises(UnboundedModuleError, match="hooks"):
            lipschitz_upper_bound(model, SHAPE)
    finally:
        handle.remove()


def test_a_class_whose_forward_was_changed_is_refused(monkeypatch: pytest.MonkeyPatch):
    plain = SOC2d.forward
    monkeypatch.setattr(SOC2d, "forward", lambda self, x: 10 * plain(self, x))
    assert_refused_by_both_paths(network(), "something else")


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", [nn.ReLU, MaxMin, nn.Linear, nn.Flatten])
def test_a_class_whose_forward_was_changed_is_refused_though_its_program_is_that_forward(kind, named, monkeypatch):
    plain = kind.forward

    def forward(self, x):
        return 10 * plain(self, x)

    monkeypatch.setattr(kind, "forward", functools.wraps(plain)(forward) if named else forward)
    model = linear(nn.ReLU(), MaxMin())
    assert_refused_by_both_paths(model, "something else")
    with pytest.raises(UnboundedModuleError, match="something else"):
        lipschitz_upper_bound(model, SHAPE)


@pytest.mark.parametrize("name", ["__call__", "_conv_forward"])
def test_what_stands_between_a_call_and_its_sums_may_not_be_replaced_either(name, monkeypatch):
    plain = getattr(nn.Conv2d, name)
    monkeypatch.setattr(nn.Conv2d, name, lambda *given: 100 * plain(*given))
    assert_refused_by_both_paths(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(36, 3)), "replaced")


class Ten:
    """No function, and no method of anybody."""

    def __call__(self, x):
        return 10 * x


class CallsAnObject(MaxMin):
    """A forward that is no function."""

    forward = Ten()


class StatesItsProgramOnly(MaxMin):
    """A program of its own, and a bound of somebody else."""

    def forward(self, x):
        return 10 * x

    def float64_program(self, input_shape):
        return exact_program(self, input_shape)


@pytest.mark.parametrize("kind", [CallsAnObject, StatesItsProgramOnly])
def test_a_bound_is_not_inherited_by_a_class_that_computes_something_else(kind):
    model = linear(kind())
    with pytest.raises(UnboundedModuleError, match="something else than MaxMin"):
        Certifier(model, SHAPE)
    with pytest.raises(UnboundedModuleError, match="something else than MaxMin"):
        lipschitz_upper_bound(model, SHAPE)


def test_a_wrapper_whose_forward_was_replaced_is_not_seen_through(monkeypatch):
    wrapped = nn.DataParallel(linear())
    assert radii(wrapped, torch.rand(2, *SHAPE), torch.tensor([0, 1])).shape == (2,)
    wrapped.forward = lambda x: wrapped.module(10 * x)
    assert_refused_by_both_paths(wrapped, "replaced")
    monkeypatch.setattr(nn.DataParallel, "forward", lambda self, x: self.module(10 * x))
    assert_refused_by_both_paths(nn.DataParallel(linear()), "replaced")


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_model_whose_forward_was_replaced_is_not_seen_through():
    compiled = torch.compile(linear())
    assert radii(compiled, torch.rand(2, *SHAPE), torch.tensor([0, 1])).shape == (2,)
    compiled.forward = lambda x: 10 * x
    with pytest.raises(UnboundedModuleError):
        Certifier(compiled, SHAPE)


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_forward_of_ours_around_one_of_somebody_else_is_not_taken_for_ours(monkeypatch):
    model = linear(nn.ReLU())
    compiled = torch.compile(model)
    compiled.forward = torch.no_grad()(lambda x: -model(x))
    with pytest.raises(UnboundedModuleError):
        Certifier(compiled, SHAPE)
    namespace: dict[str, object] = {"__name__": "torch.nn"}
    exec("def forged(self, x): return 10 * x", namespace)
    others = (torch.no_grad()(lambda self, x: 10 * x), functools.partialmethod(torch.mul, 10), namespace["forged"])
    for other in (*others, torch.neg):
        monkeypatch.setattr(nn.ReLU, "forward", other)
        assert_refused_by_both_paths(model, "something else")


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_call_is_the_modules_own_or_is_refused():
    model = linear(nn.ReLU())
    plain = Certifier(model, SHAPE).lipschitz
    model[2].compile()
    assert Certifier(model, SHAPE).lipschitz == plain
    for call in (lambda x: 10 * x, torch.compile(nn.Linear(16, 16)._call_impl)):
        model[2]._compiled_call_impl = call
        assert_refused_by_both_paths(model, "compiled call was replaced")
        with pytest.raises(UnboundedModuleError, match="compiled call was replaced"):
            lipschitz_upper_bound(model[2], (16,))


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_part_whose_forward_was_replaced_is_refused():
    part = torch.compile(nn.Linear(16, 16))
    model = linear(part)
    part.forward = lambda x: -50 * x
    assert_refused_by_both_paths(model, "replaced")
    with pytest.raises(UnboundedModuleError, match="replaced"):
        freeze(model, SHAPE)


def test_the_call_of_a_wrapper_is_looked_at_too():
    wrapped = torch.optim.swa_utils.AveragedModel(linear())
    assert radii(wrapped, torch.rand(2, *SHAPE), torch.tensor([0, 1])).shape == (2,)
    wrapped._compiled_call_impl = lambda x: -wrapped.module(x)
    assert_refused_by_both_paths(wrapped, "compiled call was replaced")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell for which class a function is")
def test_a_forward_of_another_class_is_not_taken_for_that_of_this_one(monkeypatch):
    monkeypatch.setattr(nn.ReLU, "forward", nn.SiLU.forward)
    assert_refused_by_both_paths(linear(nn.ReLU()), "something else")


class Tenfold(torch.Tensor):
    """A weight that is ten times as large wherever it is multiplied by."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = super().__torch_function__(function, types, args, kwargs or {})
        return 10 * found if function is F.linear else found


@pytest.mark.parametrize("is_parameter", [True, False])
def test_weights_that_decide_what_functions_make_of_them_are_refused(is_parameter):
    model = linear()
    weight = model[1].weight.detach().as_subclass(Tenfold)
    del model[1].weight
    model[1].weight = nn.Parameter(weight) if is_parameter else weight
    assert_refused_by_both_paths(model, "its weight is a Tenfold")
    with pytest.raises(UnboundedModuleError, match="its weight is a Tenfold"):
        lipschitz_upper_bound(model[1], (64,))
