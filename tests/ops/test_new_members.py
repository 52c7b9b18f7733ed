"""What a new series and a new engine cost: a value and a line in the table. Everything else takes them as they come."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from skewconv.certify import radii
from skewconv.certify.ball_intake import described
from skewconv.errors import ArgumentError
from skewconv.models import LipConvnet
from skewconv.nn import SOC2d
from skewconv.ops import conv_exp, degree_for, dense_jacobian, gain, norm_upper_bound, plan, skew_filter
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import ENGINES, kept_recipe
from skewconv.ops.engines import Arranged, Engine, Request
from skewconv.ops.recurrence import ChannelWidths, MatrixProducts, Recurrence
from skewconv.ops.series import SERIES, PowerSeries


class Halves(PowerSeries):
    """sum_k 2^k / k! (J / 2)^k: Taylor's polynomial in another basis."""

    name = "halves"
    max_degree = 100

    def truncated(self, rho: float, degree: int) -> tuple[tuple[float, ...], Fraction]:
        coefficients, error = SERIES["taylor"].truncated(rho, degree)
        return tuple(c * 2.0**k for k, c in enumerate(coefficients)), error + Fraction(1, 10**12)

    def basis_growth(self, rho: float) -> Fraction:
        return Fraction(rho) / 2

    def in_powers(self, exact: Sequence[Fraction], rho: float) -> list[Fraction]:
        return [c * (Fraction(rho) / 2) ** k for k, c in enumerate(exact)]

    def recurrence(self, coefficients: tuple[float, ...], rho: float) -> Recurrence:
        return Recurrence(tuple(c / 2.0**k for k, c in enumerate(coefficients)), (0.0,) * max(0, len(coefficients) - 2))

    def in_unit_basis(self, coefficients: tuple[float, ...], rho: float) -> list[float]:
        return [c * (rho / 2) ** k for k, c in enumerate(coefficients)]


class Written(Engine):
    """The recurrence with the Jacobian written out, for one group."""

    name = "written"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        return "one group only" if geometry.groups > 1 else ""

    def advantage(self, request: Request) -> str:
        return "it is fond of 400 pixels" if request.pixels == 400 else ""

    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        geometry = request.geometry
        jacobian = dense_jacobian(weight, tuple(x.shape[2:]), geometry.padding_mode, geometry.dilation)
        rows = x[0].numel()
        products = MatrixProducts(ChannelWidths(1, rows, rows, rows))
        return Arranged([x.flatten(1)[None]], [jacobian[None]], [products], lambda y: y[0].view_as(x))


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(SERIES, "halves", Halves())
    return "halves"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setitem(ENGINES, "written", Written())
    # Plans are kept: those of other tests know nothing of this engine, and these should not outlive it.
    kept_recipe.cache_clear()
    yield "written"
    kept_recipe.cache_clear()


def test_a_new_series_has_degrees_gains_and_exponentials(halves: str) -> None:
    assert degree_for(2.1, 1e-6, halves) == degree_for(2.1, 1e-6, "taylor")
    assert gain(2.1, 8, halves) == pytest.approx(gain(2.1, 8, "taylor"))
    skew = skew_filter(torch.randn(3, 3, 3, 3, dtype=torch.float64))
    x, bound = torch.randn(2, 3, 4, 4, dtype=torch.float64), norm_upper_bound(skew)
    options = {"norm_bound": bound, "tol": 1e-9}
    torch.testing.assert_close(
        conv_exp(x, skew, series=halves, **options), conv_exp(x, skew, series="taylor", **options), atol=1e-8, rtol=0
    )


def test_a_new_series_is_certified_and_the_proof_in_balls_refuses_it_by_name(halves: str) -> None:
    torch.manual_seed(0)
    model = LipConvnet(5, in_channels=1, input_size=8, width=4, conv_options={"series": halves}).eval()
    images = torch.rand(4, 1, 8, 8)
    labels = model(images).argmax(1)
    assert bool((radii(model, images, labels) > 0).all())
    with pytest.raises(ArgumentError, match="'halves'"):
        list(described(model.double(), (1, 8, 8)))


def test_a_new_engine_runs_and_is_planned_where_it_has_an_advantage(written: str) -> None:
    skew = skew_filter(torch.randn(3, 3, 3, 3, dtype=torch.float64))
    x, bound = torch.randn(2, 3, 4, 4, dtype=torch.float64), norm_upper_bound(skew)
    options = {"norm_bound": bound, "tol": 1e-9}
    torch.testing.assert_close(conv_exp(x, skew, engine=written, **options), conv_exp(x, skew, **options))
    chosen = plan((2, 3, 20, 20), (3, 3, 3, 3), degree=5)
    assert (chosen.engine, chosen.reason) == ("written", "it is fond of 400 pixels")


def test_a_new_engine_serves_layers_or_refuses_them(written: str) -> None:
    torch.manual_seed(0)
    ours, auto = SOC2d(3, 3, 3, engine=written), SOC2d(3, 3, 3)
    auto.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(ours(x), auto(x), atol=1e-5, rtol=0)
    with pytest.raises(ArgumentError, match="'written' cannot serve this request: one group only"):
        SOC2d(4, 4, 3, groups=2, engine=written)
