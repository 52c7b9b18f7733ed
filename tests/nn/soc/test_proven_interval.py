"""norm="tracked" in evaluation: the polynomial is made for the norm that is proven at the size of the images."""

import copy
import math

import pytest
import torch
from torch import Tensor

from skewconv.errors import ShapeError
from skewconv.nn import SOC2d, SOCTranspose2d, SUC1d
from skewconv.nn.lowering import lipschitz_upper_bound
from skewconv.nn.soc import proven_interval
from skewconv.nn.soc.proven_interval import follows_norm_in_eval
from skewconv.ops import dense_jacobian
from tests.torch_versions import needs_the_compiler

SIDE = 5


def layer_in_eval(**options) -> SOC2d:
    torch.manual_seed(0)
    return SOC2d(8, 8, 3, bias=False, norm="tracked", dtype=torch.float64, **options).eval()


def jacobian_of(layer: SOC2d, side: int = SIDE) -> Tensor:
    return dense_jacobian(layer.weight.detach(), side, layer.padding_mode, layer.dilation, layer.groups)


def matrix_of(layer: SOC2d, side: int = SIDE) -> Tensor:
    basis = torch.eye(8 * side * side, dtype=torch.float64).view(-1, 8, side, side)
    with torch.no_grad():
        return layer(basis).flatten(1).T


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("groups", [1, 2])
def test_fewer_products_stand_for_the_exponential_within_the_same_tolerance(padding_mode: str, groups: int) -> None:
    layer = layer_in_eval(padding_mode=padding_mode, groups=groups)
    p, jacobian = layer.polynomial(size=(SIDE, SIDE)), jacobian_of(layer)
    assert p.degree < layer.polynomial().degree
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= p.norm_bound < layer.polynomial().norm_bound
    found = matrix_of(layer)
    error = float(torch.linalg.matrix_norm(found - torch.linalg.matrix_exp(jacobian), 2))
    # It is really this polynomial that ran: one of the bound would err by far less than one so short.
    assert 1e-2 * p.truncation_error < error <= p.truncation_error + 1e-13
    assert p.truncation_error <= layer.eval_accuracy.tol
    assert float(torch.linalg.matrix_norm(found, 2)) <= p.gain[1] + 1e-13 <= 1 + 2e-13


def test_every_size_has_its_own_and_the_gain_bounds_hold_for_all() -> None:
    layer = layer_in_eval()
    low, high = layer.gain_bounds()
    found = [layer.polynomial(size=(side, side)) for side in (1, 2, 3, 8)]
    assert found[0].degree < found[-1].degree
    for side, p in zip((1, 2, 3), found, strict=False):
        assert low <= p.gain[0] <= p.gain[1] <= high
        values = torch.linalg.svdvals(matrix_of(layer, side))
        assert low - 1e-13 <= float(values.min()) <= float(values.max()) <= high + 1e-13


def test_the_interval_follows_weights_that_were_changed_behind_the_back_of_pytorch() -> None:
    layer = layer_in_eval()
    before = layer.polynomial(size=(SIDE, SIDE)).norm_bound
    layer.free.data.zero_()  # one tap alone has a norm of 0.7, a third of the bound
    narrow = layer.polynomial(size=(SIDE, SIDE)).norm_bound
    assert 0.7 <= narrow < 0.75 < before
    # Equal taps on either side, in phase: nearly all that the bound allows.
    layer.free.data.copy_(torch.eye(8).expand_as(layer.free))
    layer.centre.data.zero_()
    wide = layer.polynomial(size=(SIDE, SIDE)).norm_bound
    assert narrow < float(torch.linalg.matrix_norm(jacobian_of(layer), 2)) <= wide


def test_forward_adjoint_and_inverse_take_the_same_polynomial() -> None:
    layer = layer_in_eval()
    x = torch.randn(2, 8, SIDE, SIDE, dtype=torch.float64)
    y = torch.randn(2, 8, SIDE, SIDE, dtype=torch.float64)
    torch.testing.assert_close((layer(x) * y).sum(), (x * layer.adjoint(y)).sum(), atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(layer.inverse(layer(x)), x, atol=1e-5, rtol=0)


def test_adjoint_layers_and_strides_ask_for_the_size_that_the_exponential_sees() -> None:
    torch.manual_seed(0)
    down = SOC2d(2, 8, 3, stride=2, norm="tracked").eval()
    up = SOCTranspose2d(8, 2, 3, stride=2, norm="tracked").eval()
    assert down.size_met((2, 8, 6)) == (4, 3) == up.size_met((8, 4, 3))
    down(torch.randn(1, 2, 8, 6))
    up(torch.randn(1, 8, 4, 3))
    for layer in (down, up):
        assert list(layer._proven().intervals) == [(4, 3)]


@pytest.mark.parametrize("shape", [(8,), (1, 8, 5, 5), (8, 0, 5)])
def test_shapes_that_are_none_of_an_image_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="2 spatial axes"):
        lipschitz_upper_bound(layer_in_eval(), shape)
    with pytest.raises(ShapeError, match="divisible by the stride"):
        lipschitz_upper_bound(SOC2d(2, 8, 3, stride=2), (2, 5, 6))


def test_every_size_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, proofs = layer_in_eval(), []
    plain = proven_interval.norm_upper_bound_at

    def counted(weight: Tensor, size: tuple[int, ...], *rest, **options) -> float:
        proofs.append(size)
        return plain(weight, size, *rest, **options)

    monkeypatch.setattr(proven_interval, "norm_upper_bound_at", counted)
    sizes = [(side, side + 1) for side in range(2, 9)]
    for size in sizes * 2:
        layer(torch.zeros(1, 8, *size, dtype=torch.float64))
    assert proofs == sizes


def test_complex_filters_have_it_too() -> None:
    torch.manual_seed(0)
    layer = SUC1d(4, 4, 3, norm="tracked", bias=False, dtype=torch.complex128).eval()
    p = layer.polynomial(size=(7,))
    assert p.degree < layer.polynomial().degree
    jacobian = dense_jacobian(layer.weight.detach(), 7)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= p.norm_bound


def test_the_derivative_in_the_filter_is_that_of_the_function() -> None:
    torch.manual_seed(0)
    layer = SOC2d(3, 3, 3, bias=False, norm="tracked", dtype=torch.float64).eval()
    x = torch.randn(1, 3, 3, 3, dtype=torch.float64)

    def run(free: Tensor, centre: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"free": free, "centre": centre}, (x,))

    assert layer.polynomial(size=(3, 3)).degree < layer.polynomial().degree
    assert torch.autograd.gradcheck(run, (layer.free, layer.centre), atol=1e-6)


@pytest.mark.parametrize("options", [{"eval_degree": 9}, {"norm": "bound"}, {"kernel_size": 1}])
def test_it_is_not_asked_for_where_a_degree_is_given_or_nothing_can_be_gained(options: dict) -> None:
    assert follows_norm_in_eval(layer_in_eval())
    layer = SOC2d(**{"in_channels": 8, "out_channels": 8, "kernel_size": 3, "norm": "tracked", **options}).eval()
    assert not follows_norm_in_eval(layer)
    assert layer.polynomial(size=(4, 4)) == layer.polynomial()


def test_a_tolerance_beyond_one_leaves_a_gain_of_zero() -> None:
    assert SOC2d(4, 4, 3, norm="tracked", eval_tol=2.0).eval().gain_bounds() == (0.0, 1.0)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "transformed",
    [
        torch.func.vmap,
        lambda layer: lambda x: torch.func.jvp(layer, (x,), (x,))[0],
        lambda layer: lambda x: torch.func.vjp(layer, x)[0],
        torch.inference_mode,
    ],
    ids=["vmap", "jvp", "vjp", "inference"],
)
def test_function_transforms_see_the_same_function_even_if_they_are_the_first_to_look(transformed) -> None:
    x = torch.randn(3, 8, SIDE, SIDE, dtype=torch.float64)
    layer = layer_in_eval(eval_tol=1e-3)
    first = transformed(layer.forward)(x)
    torch.testing.assert_close(first, layer(x), atol=1e-12, rtol=0)
    # Nothing that the transform left behind stands in the way of training.
    layer(x).sum().backward()
    assert layer.polynomial(size=(SIDE, SIDE)).degree < layer.polynomial().degree


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_the_determinant_is_that_of_the_polynomial_at_this_size(padding_mode: str) -> None:
    layer = layer_in_eval(eval_tol=1e-2, padding_mode=padding_mode)
    value, error = layer.log_abs_det((8, SIDE, SIDE))
    assert abs(float(torch.linalg.slogdet(matrix_of(layer)).logabsdet) - value) <= error + 1e-11
    assert error < 1e-6


def test_a_frozen_layer_is_within_its_tolerance_of_the_polynomial_at_this_size() -> None:
    layer, shape = layer_in_eval(eval_tol=1e-2), (8, SIDE, SIDE)
    own = layer.polynomial(size=(SIDE, SIDE))
    degrees = set()
    for tol in torch.linspace(0.5, 12, 47).mul(own.truncation_error).tolist():
        choices = {choice.form: choice for choice in layer.frozen_choices(shape, shape, tol)}
        frozen = choices["chain"].build().polynomial
        assert frozen == own or frozen.truncation_error + own.truncation_error <= tol
        degrees.add(frozen.degree)
    assert len(degrees) > 1


@pytest.mark.parametrize("tracked", [False, True])
def test_another_default_device_does_not_matter(tracked: bool) -> None:
    layer = layer_in_eval() if tracked else SOC2d(8, 8, 3, dtype=torch.float64).eval()
    x = torch.randn(1, 8, SIDE, SIDE, dtype=torch.float64)
    with torch.device("meta"):
        found = layer(x)
    assert torch.equal(found, layer(x))


def test_a_layer_without_values_has_the_polynomial_of_all_sizes() -> None:
    layer = SOC2d(4, 4, 3, device="meta", norm="tracked").eval()
    assert lipschitz_upper_bound(layer, (4, 5, 5)) == layer.polynomial().gain[1]


def test_certificates_of_another_polynomial_are_of_another_function() -> None:
    layer = layer_in_eval()
    plain = copy.deepcopy(layer)
    plain.tracked_norm = None
    numbers = [each.float64_program((8, SIDE, SIDE)).operators[1] for each in (layer, plain)]
    assert [len(found) for found in numbers] == [
        2 + each.polynomial(size=(SIDE, SIDE)).degree for each in (layer, plain)
    ]


def test_half_precision_rounds_the_filter_and_keeps_the_bound() -> None:
    layer = layer_in_eval().float()
    assert layer.polynomial(size=(SIDE, SIDE), dtype=torch.bfloat16) == layer.polynomial(dtype=torch.bfloat16)


def test_a_norm_that_is_not_known_leaves_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_in_eval()
    monkeypatch.setattr(proven_interval, "proven_interval", lambda *_: math.nan)
    assert layer.polynomial(size=(SIDE, SIDE)) == layer.polynomial()


@needs_the_compiler
def test_a_compiled_program_keeps_the_bound_within_the_same_tolerance() -> None:
    layer = layer_in_eval()
    x = torch.randn(2, 8, SIDE, SIDE, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        difference = float((compiled(x) - layer(x)).norm() / x.norm())
    assert 0 < difference <= 2 * layer.eval_accuracy.tol
