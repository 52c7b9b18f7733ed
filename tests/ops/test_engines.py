"""Every engine computes the same polynomial and the same gradients: those of the dense Jacobian, in float64."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from skewconv.ops import conv_exp, dense_jacobian, norm_upper_bound, skew_filter, split_filter
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.engines import AUTO, ENGINES, dense_engine, series_engine, spectral_engine
from skewconv.ops.engines.block_products import block_count, pixel_runs
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.series_engine import memory_format
from skewconv.ops.polynomials import Polynomial, polynomial
from skewconv.ops.series import SERIES
from tests.compiling import needs_the_compiler

# The engines in each of their forms: convolutions and columns are series, blocks and matrix are dense_engine.
FORMS = {"convolutions": "series", "columns": "series", "blocks": "dense", "matrix": "dense", "spectral": "spectral"}


def test_every_engine_is_tried_in_some_form() -> None:
    assert set(FORMS.values()) == set(ENGINES)


@dataclass(frozen=True)
class Case:
    """A filter with everything that says how it meets an image, and which channels matter."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    padding_mode: str = "zeros"
    groups: int = 1
    channels: int = 3
    inputs: int = 3
    outputs: int = 3
    dilation: int = 1
    series: str = "chebyshev"
    degree: int = 4
    inverse: bool = False
    recompute: bool = False

    @property
    def geometry(self) -> Geometry:
        return Geometry.of(self.kernel, self.padding_mode, self.dilation, self.groups)

    @property
    def widths(self) -> ChannelWidths:
        return ChannelWidths(self.groups, self.channels, self.inputs, self.outputs)

    @property
    def polynomial(self) -> Polynomial:
        return polynomial(2.1, self.degree, self.series)

    def filter(self) -> Tensor:
        """A raw filter whose skew part has a norm near the bound."""
        raw = torch.randn(self.groups * self.channels, self.channels, *self.kernel, dtype=torch.float64)
        jacobian = dense_jacobian(skew_filter(raw, self.groups), self.size, **self.options)
        return raw * 2 / torch.linalg.matrix_norm(jacobian, 2).clamp_min(1)

    @property
    def options(self) -> dict:
        return {"padding_mode": self.padding_mode, "dilation": self.dilation, "groups": self.groups}

    def image(self, batch: int = 2) -> Tensor:
        return torch.randn(batch, self.groups * self.inputs, *self.size, dtype=torch.float64)

    def apply_engine(self, engine: str, x: Tensor, raw: Tensor) -> Tensor:
        return apply_polynomial(
            x,
            skew_filter(raw, self.groups),
            self.polynomial,
            self.geometry,
            out_channels=self.groups * self.outputs,
            inverse=self.inverse,
            engine=FORMS.get(engine, engine),
            recompute=self.recompute,
        )

    def apply(self, engine: str, x: Tensor, raw: Tensor) -> Tensor:
        """p(J) x by one form of an engine, whatever the shapes."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dense_engine, "uses_matrix", lambda *shapes: engine == "matrix")
            most = 2**20 if engine == "columns" else 0
            patch.setattr(series_engine, "COLUMN_LIMITS", dict.fromkeys(series_engine.COLUMN_LIMITS, ((0, most),)))
            return self.apply_engine(engine, x, raw)


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
]


# What follows in the basis of each series, for J and Z = J / rho, by its definition.
NEXT_OF_BASIS = {
    "taylor": lambda J, Z, basis, k: J @ basis[-1],
    "chebyshev": lambda J, Z, basis, k: Z @ basis[-1] if k == 0 else 2 * Z @ basis[-1] + basis[-2],
}


def test_every_series_is_among_the_shapes() -> None:
    assert set(NEXT_OF_BASIS) == set(SERIES) == {case.series for case in SHAPES}


def oracle(case: Case, x: Tensor, raw: Tensor) -> Tensor:
    """p(J) x from the dense Jacobian and the definition of the basis, every channel and then the cut."""
    jacobian = dense_jacobian(skew_filter(raw, case.groups), case.size, **case.options)
    jacobian = -jacobian if case.inverse else jacobian
    p = case.polynomial
    full = x.new_zeros(len(x), case.groups, case.channels, *case.size)
    full[:, :, : case.inputs] = x.unflatten(1, (case.groups, -1))
    u = full.flatten(1).T
    basis = [u]
    for k in range(p.degree):
        basis.append(NEXT_OF_BASIS[p.series](jacobian, jacobian / p.norm_bound, basis, k))
    total = sum(c * b for c, b in zip(p.coefficients, basis, strict=True))
    image = total.T.reshape(len(x), case.groups, case.channels, *case.size)
    return image[:, :, : case.outputs].flatten(1, 2)


def cases_of_engines() -> list:
    """Every shape with every engine that serves it."""
    return [
        pytest.param(case, engine, id=f"{engine}-{number}")
        for number, case in enumerate(SHAPES)
        for engine in FORMS
        if not ENGINES[FORMS[engine]].refusal(case.geometry, case.size)
    ]


each = pytest.mark.parametrize(("case", "engine"), cases_of_engines())


@each
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


@pytest.mark.parametrize("engine", FORMS)
@pytest.mark.parametrize("case", [c for c in GRADCHECKED if c.padding_mode == "circular"], ids=str)
def test_derivatives_of_first_and_second_order_with_circular_padding(case: Case, engine: str) -> None:
    check_derivatives(case, engine)


@pytest.mark.parametrize(
    "engine", [form for form, name in FORMS.items() if not ENGINES[name].refusal(GRADCHECKED[0].geometry, None)]
)
@pytest.mark.parametrize("case", [c for c in GRADCHECKED if c.padding_mode == "zeros"], ids=str)
def test_derivatives_of_first_and_second_order_with_zero_padding(case: Case, engine: str) -> None:
    check_derivatives(case, engine)


def check_derivatives(case: Case, engine: str) -> None:
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    assert torch.autograd.gradcheck(lambda *xs: case.apply(engine, *xs), (x, raw), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *xs: case.apply(engine, *xs), (x, raw), fast_mode=True)


@pytest.mark.parametrize("batch", [1, 9])
def test_the_spectral_engine_gives_the_same_with_and_without_the_matrix_of_the_polynomial(batch: int) -> None:
    case = Case((4, 3), (3, 3), "circular", inputs=2, outputs=3)
    assert spectral_engine.applies_matrix(batch, case.degree, case.widths) == (batch == 9)
    x, raw = case.image(batch).requires_grad_(), case.filter().requires_grad_()
    expected, found = oracle(case, x, raw), case.apply("spectral", x, raw)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, raw), direction)
    for left, right in zip(torch.autograd.grad(found, (x, raw), direction), wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [(17, 16), (300,), (8, 7, 6)])
def test_images_too_large_for_a_transform_by_matrix_use_the_fft(size: tuple[int, ...]) -> None:
    case = Case(size, (3,) * len(size), "circular", channels=2, inputs=1, outputs=2)
    assert torch.Size(size).numel() > spectral_engine.MATRIX_PIXELS
    x = case.image().requires_grad_()
    raw = 0.1 * torch.randn(2, 2, *case.kernel, dtype=torch.float64, requires_grad=True)
    by_series, by_frequency = case.apply("convolutions", x, raw), case.apply("spectral", x, raw)
    torch.testing.assert_close(by_frequency, by_series, atol=1e-12, rtol=0)
    direction = torch.randn_like(by_series)
    wanted = torch.autograd.grad(by_series, (x, raw), direction)
    for left, right in zip(torch.autograd.grad(by_frequency, (x, raw), direction), wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=0)


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
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_any_memory_order_of_image_filter_and_gradient_will_do(engine: str, memory_format: torch.memory_format) -> None:
    case = Case((4, 3), (3, 3), "circular", inputs=2)
    x, raw = case.image().requires_grad_(), case.filter().requires_grad_()
    expected = oracle(case, x, raw)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, raw), direction)
    found = case.apply(engine, x.contiguous(memory_format=memory_format), raw.contiguous(memory_format=memory_format))
    grads = torch.autograd.grad(found, (x, raw), direction.transpose(2, 3).contiguous().transpose(2, 3))
    for left, right in zip((found, *grads), (expected, *wanted), strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


def test_an_image_stored_channels_last_stays_so_through_blocks() -> None:
    case = Case((4, 3), (3, 3))
    x = case.image().contiguous(memory_format=torch.channels_last)
    assert case.apply("blocks", x, case.filter()).is_contiguous(memory_format=torch.channels_last)
    assert case.apply("blocks", x.contiguous(), case.filter()).is_contiguous()


@pytest.mark.parametrize("engine", FORMS)
def test_an_empty_batch_stays_empty(engine: str) -> None:
    case = Case((4, 3), (3, 3), "circular", outputs=2)
    assert case.apply(engine, case.image(0), case.filter()).shape == (0, 2, 4, 3)


def given_up(y: Tensor) -> list[Tensor]:
    """What the nodes of a graph hold besides saved tensors, to be given up on the way back."""
    found, pending = [], [y.grad_fn]
    while pending:
        node = pending.pop()
        found += getattr(node, "spent", None) or []
        pending += [parent for parent, _ in node.next_functions if parent is not None]
    return found


@pytest.mark.parametrize("engine", FORMS)
def test_recomputing_keeps_as_little_at_any_degree(engine: str) -> None:
    def kept(degree: int, recompute: bool) -> int:
        case = Case((3, 3), (3, 3), "circular", degree=degree, recompute=recompute)
        stored: dict[int, int] = {}
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: stored.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t
        )
        with hooks:
            y = case.apply(engine, case.image().requires_grad_(), case.filter().requires_grad_())
        return sum(stored.values()) + sum(t.nbytes for t in given_up(y))

    assert kept(16, recompute=True) == kept(4, recompute=True)
    assert kept(16, recompute=False) > kept(4, recompute=False)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 4)])
def test_runs_list_every_block_of_the_jacobian_once(size: tuple[int, int], padding_mode: str) -> None:
    geometry = Geometry.of((3, 3), padding_mode, 1, 1)
    pixels = size[0] * size[1]
    for tap in range(9):
        weight = torch.zeros(1, 1, 9)
        weight[..., tap] = 1.0
        listed = torch.zeros(pixels, pixels)
        for run in pixel_runs(geometry, size):
            if run.tap == tap:
                for i in range(run.length):
                    listed[run.target + i, run.source + i] += 1
        # exact: sums of ones
        assert torch.equal(listed, dense_jacobian(weight.view(1, 1, 3, 3), size, padding_mode))
    assert sum(run.length for run in pixel_runs(geometry, size)) == block_count(geometry, size)


def test_small_images_need_few_blocks() -> None:
    geometry = Geometry.of((3, 3), "zeros", 1, 1)
    assert [block_count(geometry, (n, n)) for n in (1, 2, 4)] == [1, 16, 100]
    assert [len(pixel_runs(geometry, (n, n))) for n in (1, 2, 4)] == [1, 11, 23]


@pytest.mark.parametrize("engine", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_its_rounding(engine: str, dtype: torch.dtype) -> None:
    case = Case((4, 4), (3, 3), "circular")
    x, raw = case.image().to(dtype).requires_grad_(), case.filter().to(dtype).requires_grad_()
    found = case.apply(engine, x, raw)
    assert found.dtype == dtype
    direction = torch.randn_like(found)
    found.backward(direction)
    wide, wide_raw = x.detach().double().requires_grad_(), raw.detach().double().requires_grad_()
    expected = oracle(case, wide, wide_raw)
    expected.backward(direction.double())
    eps = 4 * torch.finfo(dtype).eps
    for left, right in ((found, expected), (x.grad, wide.grad), (raw.grad, wide_raw.grad)):
        assert left.dtype == dtype
        assert (left - right).norm() <= eps * right.norm()


@pytest.mark.parametrize("engine", FORMS)
def test_autocast_casts_once_and_the_gradients_come_back_in_float32(engine: str) -> None:
    case = Case((4, 4), (3, 3), "circular")
    x, raw = case.image().float().requires_grad_(), case.filter().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = case.apply(engine, x, raw)
    assert found.dtype == torch.bfloat16
    # repeated: the same as casting by hand and running without autocast
    assert torch.equal(found, case.apply(engine, x.bfloat16(), split_filter(skew_filter(raw).bfloat16())))
    found.float().sum().backward()
    assert x.grad.dtype == raw.grad.dtype == torch.float32


def test_autocast_leaves_complex_images_alone_and_takes_mixed_real_ones() -> None:
    skew = 0.1 * skew_filter(torch.randn(2, 2, 3, 3, dtype=torch.complex64))
    x = torch.randn(1, 2, 4, 4, dtype=torch.complex64)
    expected = conv_exp(x, skew, norm_bound=5.0, degree=4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(conv_exp(x, skew, norm_bound=5.0, degree=4), expected)
        mixed = conv_exp(x.real.bfloat16(), 0.1 * skew_filter(torch.randn(2, 2, 3, 3)), norm_bound=5.0, degree=4)
    assert mixed.dtype == torch.bfloat16


def test_float64_is_left_alone_by_autocast() -> None:
    case = Case((4, 4), (3, 3))
    x, raw = case.image(), case.filter()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert case.apply("convolutions", x, raw).dtype == torch.float64
        torch.testing.assert_close(case.apply("convolutions", x, raw), oracle(case, x, raw), atol=1e-12, rtol=0)


@needs_the_compiler
@pytest.mark.parametrize("engine", [*ENGINES, AUTO])
def test_compiled_evaluation_agrees(engine: str) -> None:
    case = Case((4, 4), (3, 3), "circular", inputs=2)
    x, raw = case.image(), case.filter()
    skew, p, geometry = skew_filter(raw), case.polynomial, case.geometry

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: Tensor, skew: Tensor) -> Tensor:
        return apply_polynomial(x, skew, p, geometry, engine=engine)

    with torch.no_grad():
        torch.testing.assert_close(compiled(x, skew), oracle(case, x, raw), atol=1e-12, rtol=0)


def test_function_transforms_work_on_shapes_that_are_otherwise_stored_channels_last() -> None:
    case = Case((16, 16), (3, 3), channels=16, inputs=16, outputs=16, degree=2)
    assert memory_format(16, case.size, "zeros") == torch.channels_last
    x, raw = case.image(2), 0.05 * torch.randn(16, 16, 3, 3, dtype=torch.float64)
    one_by_one = torch.func.vmap(lambda image: case.apply_engine("convolutions", image, raw))(x)
    torch.testing.assert_close(one_by_one, case.apply("convolutions", x, raw), atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", [*FORMS, AUTO])
def test_function_transforms_see_through(engine: str) -> None:
    case = Case((4, 4), (3, 3), "circular", inputs=2)
    x, raw = case.image(3), case.filter()
    one_by_one = torch.func.vmap(lambda image: case.apply(engine, image, raw))(x)
    torch.testing.assert_close(one_by_one, oracle(case, x, raw), atol=1e-12, rtol=0)
    grad = torch.func.grad(lambda raw: case.apply(engine, x, raw).square().sum())(raw)
    leaf = raw.clone().requires_grad_()
    oracle(case, x, leaf).square().sum().backward()
    torch.testing.assert_close(grad, leaf.grad, atol=1e-11, rtol=0)


def test_engines_agree_through_the_public_entry() -> None:
    x, skew = torch.randn(2, 4, 4, 4), skew_filter(torch.randn(4, 4, 3, 3))
    options = {"norm_bound": norm_upper_bound(skew), "tol": 1e-5, "padding_mode": "circular"}
    values = [conv_exp(x, skew, engine=engine, **options) for engine in (AUTO, *ENGINES)]
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], atol=2e-5, rtol=0)
