"""Every engine computes the same polynomial and the same gradients: those of the dense Jacobian, in float64."""

from dataclasses import replace

import pytest
import torch

from skewconv.ops import dense_jacobian, skew_filter, spectrum
from skewconv.ops.convolution_exponential import ENGINES
from skewconv.ops.engines import spectral_engine
from skewconv.ops.series import SERIES
from tests.ops.engine_cases import FORMS, NEXT_OF_BASIS, Case, oracle


def test_every_engine_is_tried_in_some_form() -> None:
    assert set(FORMS.values()) == set(ENGINES)


SHAPES = [
    Case((4, 4), (3, 3)),
    Case((2, 2), (3, 3), inputs=1, series="taylor"),
    Case((1, 1), (3, 3), outputs=2),
    Case((3, 5), (5, 3), inputs=2, outputs=1, dilation=2, inverse=True),
    Case((4,), (3,), groups=2, channels=2, inputs=1, outputs=2, recompute=True, degree=6),
    Case((2, 3, 2), (3, 3, 3), channels=2, inputs=2, outputs=1, series="taylor", recompute=True, degree=5),
    Case((4, 3), (3, 3), "circular", inputs=2),
    Case((2, 2), (3, 3), "circular", outputs=1, recompute=True),
    Case((1, 1), (3, 3), "circular", series="taylor", inverse=True),
    Case((1, 2), (3, 5), "circular"),
    Case((5,), (3,), "circular", groups=2, channels=2, inputs=2, outputs=1, dilation=2, inverse=True),
    Case((2, 2, 3), (3, 1, 3), "circular", channels=2, inputs=1, outputs=2, recompute=True, inverse=True, degree=6),
    Case((3, 3), (1, 1), degree=1, inputs=2, outputs=1),
    Case((3, 3), (3, 3), degree=0, inputs=2, outputs=1),
    Case((3, 3), (3, 3), "circular", degree=2, inputs=1, outputs=2),
    Case((9, 6), (3, 3), inputs=2, outputs=1),
    Case((5, 9), (3, 3), "circular", inputs=1, outputs=3, recompute=True),
    Case((5, 4), (3, 3), series="isometric", inputs=2, degree=4),
]


def test_every_series_is_among_the_shapes() -> None:
    assert set(NEXT_OF_BASIS) == set(SERIES) == {case.series for case in SHAPES}


def cases_of_engines(cases: list[Case]) -> list:
    """Every case with every engine that serves it."""
    return [
        pytest.param(case, engine, id=f"{engine}-{number}")
        for number, case in enumerate(cases)
        for engine in FORMS
        if not ENGINES[FORMS[engine]].refusal(case.geometry, case.size)
    ]


# Images too large for a transform by one matrix, and enough of them that p(L^) is worth building, from either side.
BY_FREQUENCIES = [
    Case((4, 3), (3, 3), "circular", inputs=2, batch=9),
    Case((4, 3), (3, 3), "circular", outputs=2, batch=9),
    Case((4, 3), (3, 3), "circular", outputs=2, batch=1),
    Case((17, 65), (3, 3), "circular", channels=2, inputs=1, outputs=2),
    Case((17, 16), (3, 3), "circular", channels=2, inputs=1, outputs=2),
    Case((300,), (3,), "circular", channels=2, inputs=1, outputs=2),
    Case((8, 7, 6), (3, 3, 3), "circular", channels=2, inputs=1, outputs=2),
]


def test_every_way_of_the_spectral_engine_is_tried() -> None:
    circular = [case for case in [*SHAPES, *BY_FREQUENCIES] if case.padding_mode == "circular"]
    worth = {
        (spectral_engine.applies_matrix(case.batch, case.degree, case.widths), case.widths.outputs < case.widths.inputs)
        for case in circular
    }
    assert worth == {(True, True), (True, False), (False, True), (False, False)}
    assert len({spectrum._way(case.size) for case in circular}) == 3


each = pytest.mark.parametrize(("case", "engine"), cases_of_engines(SHAPES))


@pytest.mark.parametrize(
    ("case", "engine"), [*cases_of_engines(SHAPES), *((case, "spectral") for case in BY_FREQUENCIES)]
)
def test_values_and_gradients_are_those_of_the_dense_jacobian(case: Case, engine: str) -> None:
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    expected = oracle(case, x, raw)
    found = case.apply(engine, x, raw)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    direction = torch.randn_like(expected)
    # At degree 0 the filter is not read at all.
    wanted = torch.autograd.grad(expected, (x, raw), direction, materialize_grads=True)
    for left, right in zip(torch.autograd.grad(found, (x, raw), direction), wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


@each
def test_gradients_of_one_argument_alone_are_the_same(case: Case, engine: str) -> None:
    x, raw = case.image(), case.filter()
    direction = torch.randn_like(case.apply(engine, x, raw))
    both = torch.autograd.grad(
        case.apply(engine, x.requires_grad_(), raw.requires_grad_()), (x, raw), direction, materialize_grads=True
    )
    (x_grad,) = torch.autograd.grad(case.apply(engine, x, raw.detach()), x, direction)
    torch.testing.assert_close(x_grad, both[0], atol=1e-12, rtol=0)
    (raw_grad,) = torch.autograd.grad(case.apply(engine, x.detach(), raw), raw, direction)
    torch.testing.assert_close(raw_grad, both[1], atol=1e-12, rtol=0)


GRADCHECKED = [
    Case((3, 2), (3, 3), channels=2, inputs=1, outputs=2),
    Case((2, 2), (3, 3), channels=2, inputs=2, outputs=1, series="taylor", degree=3, recompute=True, inverse=True),
    Case((3,), (3,), "circular", groups=2, channels=2, inputs=1, outputs=2, recompute=True),
    Case((2, 2), (3, 3), "circular", channels=2, inputs=2, outputs=1, series="taylor", inverse=True),
    Case((2, 2, 2), (3, 3, 1), "circular", channels=2, inputs=2, outputs=2, degree=3),
    Case((5,), (3,), channels=2, inputs=2, outputs=2, dilation=2, degree=3),
]


@pytest.mark.parametrize(("case", "engine"), cases_of_engines(GRADCHECKED))
def test_derivatives_of_first_and_second_order(case: Case, engine: str) -> None:
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    assert torch.autograd.gradcheck(lambda *xs: case.apply(engine, *xs), (x, raw), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *xs: case.apply(engine, *xs), (x, raw), fast_mode=True)


@pytest.mark.parametrize("engine", FORMS)
def test_complex_images_and_single_images_are_served(engine: str) -> None:
    case = Case((3, 3), (3, 3), "circular", channels=2, inputs=2, outputs=2)
    raw = 0.1 * torch.randn(2, 2, 3, 3, dtype=torch.complex128)
    x = torch.randn(2, 3, 3, dtype=torch.complex128)
    jacobian = dense_jacobian(skew_filter(raw), case.size, "circular")
    exact = torch.linalg.matrix_exp(jacobian) @ x.flatten()
    found = replace(case, degree=24).apply(engine, x, raw)
    torch.testing.assert_close(found.flatten(), exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", FORMS)
def test_an_empty_batch_stays_empty(engine: str) -> None:
    for size in ((4, 3), (9, 8)):
        case = Case(size, (3, 3), "circular", outputs=2)
        assert case.apply(engine, case.image(0), case.filter()).shape == (0, 2, *size)
