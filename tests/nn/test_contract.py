"""The contract of every layer and activation: it trains, keeps its proven bound, is certified, frozen and stored."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skewconv import nn as snn
from skewconv.certify import audit, programs
from skewconv.errors import DtypeError, NotFiniteError, UnboundedModuleError
from skewconv.frozen import freeze, load_frozen, save_frozen
from skewconv.models import LipConvnet
from skewconv.nn.bounds import lipschitz_bound
from skewconv.nn.module_tools import float64_copy
from skewconv.ops import dense_matrix
from tests.certify.oracles import float64_program
from tests.nn.rows import COMPLEX_ROWS, NOT_CERTIFIED, ROWS, TORCH, Row, built, of_kind, public_layers, trained
from tests.nn.soc.test_contract import ROWS as SOC_ROWS

LEARNED = [name for name in ROWS if any(key != "bias" for key, _ in built(name)[0].named_parameters())]
# Shapes at which the engines prefer channels last, and what a frozen layer cuts off.
FORMATS = {
    "SOC2d-last": Row(lambda: snn.SOC2d(16, 16, 3), (16, 4, 4), "orthogonal"),
    "SOC2d-last-stride": Row(lambda: snn.SOC2d(3, 16, 3, stride=2), (3, 8, 8), "orthogonal"),
    "SOC3d-last": Row(lambda: snn.SOC3d(16, 16, 1), (16, 8, 8, 8), "orthogonal"),
}


def test_every_layer_that_is_offered_and_every_type_of_the_tables_has_a_row():
    assert {name.partition("-")[0] for name in ROWS | COMPLEX_ROWS} == public_layers()
    skew = {name for name in public_layers() if name.startswith(("SOC", "SUC"))}
    assert {row[0] for row in SOC_ROWS} == skew
    entered = {kind for kind in lipschitz_bound.registry if kind.__module__.startswith("torch.nn")}
    assert entered == set(TORCH)
    certified = {kind for kind in programs.float64_program.registry if kind.__module__.startswith("torch.nn")}
    assert certified == entered - NOT_CERTIFIED


@pytest.mark.parametrize("name", ROWS)
def test_after_training_no_pair_and_no_gradient_is_stretched_beyond_the_proven_bound(name):
    layer, shape = built(name)
    trained(layer, shape).double()
    bound = snn.lipschitz_upper_bound(layer, shape)
    x = torch.randn(64, *shape, dtype=torch.float64)
    for scale in (1e-4, 1e-1, 3.0):
        y = x + scale * torch.randn_like(x)
        ratio = (layer(x) - layer(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        assert float(ratio.detach().max()) <= bound * (1 + 1e-9)
    if ROWS[name].kind != "bounded":
        assert bound <= 1.0
    x.requires_grad_()
    y = layer(x)
    cotangent = torch.randn_like(y)
    (grad,) = torch.autograd.grad(y, x, cotangent)
    ratio = grad.flatten(1).norm(dim=1) / cotangent.flatten(1).norm(dim=1)
    if ROWS[name].kind in ("orthogonal", "activation") and y[0].numel() <= x[0].numel():
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
    else:
        assert float(ratio.max()) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("name", of_kind("orthogonal", "shrinking", "bounded"))
def test_linear_maps_have_singular_values_within_their_stated_gain(name):
    layer, shape = built(name)
    trained(layer, shape)
    zero = layer(torch.zeros(1, *shape))
    matrix = dense_matrix(lambda x: layer(x) - zero, shape, dtype=torch.float32).detach().double().numpy()
    values = np.linalg.svd(matrix, compute_uv=False)
    if ROWS[name].kind == "orthogonal":
        assert np.abs(values - 1).max() <= 1e-5
    assert values.max() <= snn.lipschitz_upper_bound(layer, shape) + 2e-6
    for low, high in (layer.gain_bounds(), layer.gain_bounds(shape)):
        assert values.max() <= high + 2e-6
        assert values.min() >= low - 2e-6
        assert ROWS[name].kind == "bounded" or 1 - 1e-5 <= high <= 1.0


@pytest.mark.parametrize("name", ROWS)
def test_gradients_of_input_and_parameters_are_those_of_finite_differences(name):
    layer, shape = built(name)
    layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    moves = any(True for _ in layer.buffers()) and name != "Normalize"
    # The norm that CPL proves is that of a grid, whose derivative is only near to that of its power vector.
    leaves = {} if name.startswith("CPL2d") else {key: p.detach() for key, p in layer.named_parameters()}
    x = torch.randn(2, *shape, dtype=torch.float64)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(leaves, values, strict=True)), (x,))

    # In training, a call that moves buffers moves the function with them: SOC layers have a test of their own.
    for training in (False,) if moves else (True, False):
        layer.train(training)
        inputs = [tensor.clone().requires_grad_() for tensor in (x, *leaves.values())]
        assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("name", LEARNED)
def test_evaluation_gives_the_same_values_with_and_without_gradients(name):
    layer, shape = built(name)
    layer.eval()
    x = torch.randn(2, *shape)
    with torch.inference_mode():
        inferred = layer(x)
    with torch.no_grad():
        assert torch.equal(layer(x), inferred)
    # With gradients torch may multiply matrices by other kernels.
    torch.testing.assert_close(layer(x.requires_grad_()).detach(), inferred, atol=2e-6, rtol=0)
    # What was kept in inference mode does not hinder a backward pass.
    layer.requires_grad_(False)(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("name", ROWS)
def test_copies_and_saved_states_compute_the_same_bits(name):
    layer, shape = built(name)
    fresh = copy.deepcopy(layer)
    trained(layer, shape, steps=3)
    x = torch.randn(2, *shape)
    # The same operations on the same values in the same process: nothing is left to another kernel.
    expected = layer(x)
    assert torch.equal(layer(x), expected)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), expected)
    fresh.eval()(x)
    fresh.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(fresh(x), expected)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "Normalize"])
def test_under_autocast_layers_return_its_dtype_as_pytorchs_own_do(name):
    layer, shape = built(name)
    for module in (layer, layer.eval()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            # What computes nothing but differences and order keeps the dtype that it is given.
            keeps = ROWS[name].kind == "activation" or name.startswith(("BatchC", "Invert"))
            x = torch.randn(2, *shape, dtype=torch.bfloat16 if keeps else torch.float32)
            assert module(x).dtype == torch.bfloat16


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_kept_in_evaluation_is_never_stale(name):
    layer, shape = built(name)
    layer.eval()
    x, other = torch.randn(2, *shape), copy.deepcopy(layer)
    other.reset_parameters()
    learned = [p for key, p in layer.named_parameters() if key != "bias"]
    edits = [
        lambda: learned[0].mul_(torch.rand_like(learned[0])),
        lambda: learned[-1].data.add_(torch.rand_like(learned[-1])),
        lambda: layer.load_state_dict(other.state_dict()),
        layer.reset_parameters,
    ]
    with torch.no_grad():
        before = layer(x)
        shown = layer.frequency_matrices(shape) if name.startswith("Cayley") else getattr(layer, "weight", None)
        if shown is not None and not isinstance(shown, nn.Parameter):
            shown *= 4  # users get copies
            assert torch.equal(layer(x), before)
        for number, edit in enumerate(edits):
            before = layer(x)
            edit()
            # A copy starts without what was kept. Some layers always begin alike.
            assert torch.equal(layer(x), copy.deepcopy(layer)(x))
            assert number > 1 or not torch.equal(layer(x), before)


@pytest.mark.parametrize("name", [name for name in LEARNED if ROWS[name].kind != "activation"])
def test_parameters_that_are_not_finite_have_no_bound(name):
    layer, shape = built(name)
    with torch.no_grad():
        next(p for key, p in layer.named_parameters() if key != "bias").view(-1)[0] = float("nan")
    with pytest.raises(NotFiniteError):
        snn.lipschitz_upper_bound(layer, shape)


@pytest.mark.parametrize("reentrant", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("name", LEARNED)
def test_a_pass_that_checkpointing_repeats_meets_the_same_layer(name, reentrant):
    def gradients(layer: nn.Module, way: bool | None) -> list[Tensor]:
        for _ in range(2):
            with torch.no_grad():
                for p in layer.parameters():
                    p.add_(0.2 * torch.linspace(-1, 1, p.numel()).view_as(p))
            layer.zero_grad()
            y = layer(x) if way is None else checkpoint(layer, x, use_reentrant=way)
            y.abs().sin().sum().backward()
        return [p.grad for p in layer.parameters()] + [b.clone() for b in layer.buffers()]

    layer, shape = built(name)
    twin, x = copy.deepcopy(layer).double(), torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    expected = gradients(layer.double(), None)
    torch.testing.assert_close(gradients(twin, reentrant), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["SOC2d", "CPL2d"])
def test_the_estimate_goes_on_when_weights_are_edited_where_no_counter_sees_it(name):
    layer, shape = built(name)
    x = torch.randn(2, *shape)
    weight = next(p for n, p in layer.named_parameters() if n in ("free", "weight"))
    layer(x)
    before = next(iter(layer.buffers())).clone()
    weight.data.copy_(torch.randn_like(weight))
    for _ in range(260):  # after a hundred passes that look alike the next one is a step all the same
        weight.data.mul_(1.001)
        layer(x)
    assert not torch.allclose(next(iter(layer.buffers())), before, atol=1e-3)


@pytest.mark.parametrize("name", [n for n, row in (ROWS | COMPLEX_ROWS | FORMATS).items() if len(row.shape) > 2])
def test_the_output_has_the_memory_format_of_the_input(name):
    layer, shape = (FORMATS[name].build(), FORMATS[name].shape) if name in FORMATS else built(name)
    x = torch.randn(2, *shape, dtype=getattr(layer, "filter_dtype", torch.float32))
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    for module in (layer, layer.eval(), freeze(layer, shape)):
        for order in (torch.contiguous_format, last):
            given = x.contiguous(memory_format=order)
            if order == last and given.is_contiguous():
                continue  # one channel or one pixel: both orders are one
            y = module(given)
            assert y.is_contiguous(memory_format=order), (order, y.shape, y.stride())
            if module is layer and hasattr(layer, "adjoint") and y[0, 0].numel() > 1 < y.shape[1]:
                back = module.adjoint(y.detach().contiguous(memory_format=order))
                assert back.is_contiguous(memory_format=order), (order, back.shape, back.stride())
        assert module(x).view(2, -1).shape[0] == 2


def test_between_the_layers_of_a_network_each_keeps_its_own_format():
    model = LipConvnet(10, in_channels=3, input_size=8, width=16)
    layer = next(module for module in model.modules() if isinstance(module, snn.SOC2d) and module.stride == (1, 1))
    made: list[Tensor] = []
    layer.register_forward_hook(lambda module, given, y: made.append(y))
    model(torch.rand(2, 3, 8, 8))
    assert not made[0].is_contiguous()
    assert made[0].is_contiguous(memory_format=torch.channels_last)


def comes_back(module: nn.Module, shape: tuple[int, ...], folder, *, is_complex: bool = False) -> nn.Module:
    """The module frozen, saved and loaded, which must change no bit of what the frozen one computes."""
    frozen = freeze(module, shape)
    again = load_frozen(save_frozen(frozen, folder / "model.safetensors"))
    x = torch.randn(2, *shape, dtype=torch.complex64 if is_complex else torch.float32)
    assert torch.equal(again(x), frozen(x))
    torch.testing.assert_close(frozen(x), module.eval()(x), atol=2e-5, rtol=0)
    return frozen


def assert_program_is_the_layer(module: nn.Module, shape: tuple[int, ...]) -> None:
    exact, x = float64_copy(module), torch.randn(3, *shape, dtype=torch.float64)
    program = float64_program(exact, shape)
    torch.testing.assert_close(program.run(x.clone()), exact(x), atol=1e-12, rtol=1e-12)
    assert program.shape == tuple(exact(x).shape[1:])
    norms = exact(x).flatten(1).norm(dim=1)
    assert all(
        float(n) <= program.bounds.norm.at(float(size)) for n, size in zip(norms, x.flatten(1).norm(dim=1), strict=True)
    )
    assert 0 <= program.bounds.error.slope < 1e-11


@pytest.mark.parametrize("kind", TORCH, ids=lambda kind: kind.__name__)
def test_each_of_pytorchs_layers_is_stored_and_certified_or_refused_by_name(kind, tmp_path):
    module, shape = TORCH[kind]
    comes_back(module, shape, tmp_path)
    if kind in NOT_CERTIFIED:
        with pytest.raises(UnboundedModuleError, match=kind.__name__):
            float64_program(float64_copy(module), shape)
    else:
        assert_program_is_the_layer(module, shape)


@pytest.mark.parametrize("name", ROWS)
def test_each_of_our_layers_has_a_lowering_a_program_and_a_row_in_audits(name, tmp_path):
    layer, shape = built(name)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    layer.eval()
    assert_program_is_the_layer(layer, shape)
    frozen = comes_back(layer, shape, tmp_path)
    assert snn.lipschitz_upper_bound(frozen, shape) <= snn.lipschitz_upper_bound(layer, shape) * (1 + 1e-6)
    (row,) = audit(layer, shape, steps=2)["results"]["layers"]
    assert row["type"] == name.partition("-")[0]
    assert row["lipschitz_lower_bound"] <= row["lipschitz_upper_bound"]
    assert ("largest_singular_value" in row) == (ROWS[name].kind not in ("activation", "residual"))


@pytest.mark.parametrize("name", COMPLEX_ROWS)
def test_complex_layers_freeze_and_are_refused_a_certificate_by_name(name, tmp_path):
    layer, shape = built(name)
    comes_back(layer, shape, tmp_path, is_complex=True)
    with pytest.raises(UnboundedModuleError, match=rf"{name}.*complex"):
        float64_program(layer.eval(), shape)
    with pytest.raises(DtypeError, match=name):
        audit(layer, shape, steps=1)
