"""The Lipschitz protocol: sound bounds, exact where they can be, and refusals that name the module."""

import copy
import math
from collections import OrderedDict
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError, UnboundedModuleError
from skewconv.nn import Normalize, lipschitz_upper_bound, register_bound
from skewconv.nn.bounds import output_shape
from tests.nn.rows import TORCH


def jacobian_norm(module: nn.Module, shape: tuple[int, ...], points: int = 3, x: torch.Tensor | None = None) -> float:
    """The largest norm of the Jacobian in eval mode at random points, or at this one, in float64."""
    module, norms = module.double().eval(), []
    for _ in range(points):
        at = torch.randn(1, *shape, dtype=torch.float64) if x is None else x
        j = torch.autograd.functional.jacobian(module, at)
        norms.append(float(np.linalg.norm(j.reshape(-1, at.numel()).numpy(), 2)))
    return max(norms)


# Of these the bound is the norm.
EXACT = {
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Dropout),
    *(nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.Linear, nn.AvgPool2d),
    *(nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
}


@pytest.mark.parametrize("kind", TORCH, ids=lambda kind: kind.__name__)
def test_the_bound_of_each_of_pytorchs_layers_is_above_its_jacobians_and_is_its_norm_where_that_is_known(kind) -> None:
    module, shape = copy.deepcopy(TORCH[kind][0]), TORCH[kind][1]
    if "BatchNorm" in kind.__name__:
        nn.init.uniform_(module.running_var, 0.01, 2.0)
    truth, bound = jacobian_norm(module, shape), lipschitz_upper_bound(module, shape)
    assert truth * (1 - 1e-14) <= bound
    assert bound <= truth * (1 + 1e-9) or kind not in EXACT


SOUND = [
    nn.Conv1d(3, 4, 3, padding=1),
    nn.Conv1d(4, 4, 4, padding=2, groups=2),
    nn.Conv1d(2, 3, 3, padding=5),
    nn.Conv1d(2, 3, 5, stride=2, padding=2, dilation=2),
    nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"),
    nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular"),
    nn.Conv1d(2, 3, 3, padding_mode="circular"),
    nn.ConvTranspose1d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
    nn.AvgPool1d(3, stride=1),
    nn.AvgPool1d(3, stride=2, padding=1),
    nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False),
    nn.AvgPool1d(3, stride=2, ceil_mode=True),
    nn.AvgPool1d(4, stride=3, padding=2, ceil_mode=True, count_include_pad=False),
    nn.AdaptiveAvgPool1d(3),
    nn.AdaptiveAvgPool1d(5),
    nn.AdaptiveAvgPool1d(11),
    nn.MaxPool1d(3, stride=1),
    nn.MaxPool1d(3, stride=2, dilation=2),
    nn.MaxPool1d(2, stride=2, padding=1, ceil_mode=True),
]


@pytest.mark.parametrize("module", SOUND, ids=str)
@pytest.mark.parametrize("size", [7, 8])
def test_the_bound_of_a_pool_or_convolution_holds_at_borders_and_overlaps(module: nn.Module, size: int) -> None:
    channels = getattr(module, "in_channels", 2)
    truth, bound = jacobian_norm(module, (channels, size), points=20), lipschitz_upper_bound(module, (channels, size))
    assert truth * (1 - 1e-12) <= bound <= 3 * truth


@pytest.mark.parametrize(
    ("pool", "size", "norm"),
    [(nn.MaxPool2d(3, stride=1), (5, 5), 3.0), (nn.MaxPool1d(3, stride=2, dilation=2), (9,), math.sqrt(3))],
    ids=str,
)
def test_overlapping_max_pools_attain_their_bound(pool: nn.Module, size: tuple[int, ...], norm: float) -> None:
    x = torch.zeros(1, 1, *size, dtype=torch.float64)
    x.view(-1)[x.numel() // 2] = 1.0
    truth = jacobian_norm(pool, (1, *size), 1, x)
    assert truth == pytest.approx(norm)
    assert truth * (1 - 1e-15) <= lipschitz_upper_bound(pool, (1, *size)) <= truth * (1 + 1e-12)


@pytest.mark.parametrize(
    "module",
    [
        *(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.LeakyReLU(-3.0), nn.PReLU(1, 1.5), nn.ELU(), nn.ELU(2.5)),
        *(nn.CELU(0.3), nn.SELU(), nn.Hardtanh(), nn.Tanh(), nn.Sigmoid(), nn.Softsign(), nn.LogSigmoid()),
        *(nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")),
    ],
    ids=str,
)
def test_the_bound_of_an_activation_is_its_largest_slope(module: nn.Module) -> None:
    x = torch.linspace(-40, 40, 800001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(module.double()(x).sum(), x)
    truth, bound = float(slope.abs().max()), lipschitz_upper_bound(module, (3,))
    assert truth <= bound <= 1.01 * truth


def test_a_sequence_multiplies_bounds_and_propagates_shapes() -> None:
    model = nn.Sequential(
        Normalize((0.5, 0.4, 0.3), (0.25, 0.5, 0.5)),
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(4, 2),
    )
    shapes = [(3, 8, 8), (3, 8, 8), (4, 4, 4), (4, 4, 4), (4,)]
    factors = [lipschitz_upper_bound(m, s) for m, s in zip(model, shapes, strict=True)]
    assert factors[0] == 4.0
    assert factors[3] == 0.25  # the mean of 16 values
    exact = math.prod(map(Fraction, factors))
    bound = Fraction(lipschitz_upper_bound(model, (3, 8, 8)))
    assert exact <= bound <= exact * (1 + Fraction(1, 10**14))
    assert jacobian_norm(model, (3, 8, 8)) <= bound


class Container(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU(), part))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.features(x)


@pytest.mark.parametrize("part", [nn.Softplus(), nn.LayerNorm(3)], ids=lambda p: type(p).__name__)
def test_what_cannot_be_bounded_is_refused_by_its_path_in_the_model(part: nn.Module) -> None:
    with pytest.raises(UnboundedModuleError, match=r"'features\.1\.1' .*" + type(part).__name__):
        lipschitz_upper_bound(Container(part), (3,))
    with pytest.raises(UnboundedModuleError, match=r"'net\.features\.1\.1'"):
        lipschitz_upper_bound(nn.Sequential(OrderedDict(net=Container(part))), (3,))
    assert lipschitz_upper_bound(Container(nn.ReLU()), (3,)) == pytest.approx(2.0)


REPLACED, HOOKED, PRE_HOOKED = nn.ReLU(), nn.ReLU(), Container(nn.ReLU())
REPLACED.forward = lambda x: 5 * x  # type: ignore[method-assign]
HOOKED.register_forward_hook(lambda m, args, out: 5 * out)
PRE_HOOKED.register_forward_pre_hook(lambda m, args: (5 * args[0],))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (HOOKED, "hooks"),
        (PRE_HOOKED, "hooks"),
        (REPLACED, "replaced"),
        (nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect"), "reflect"),
        (nn.Conv1d(1, 1, 3, padding=1, padding_mode="replicate"), "replicate"),
        (nn.Conv1d(1, 1, 3, padding=2, padding_mode="circular"), "repeated"),
        (nn.BatchNorm1d(3, track_running_stats=False), "running statistics"),
        (nn.MaxPool1d(2, return_indices=True), "indices"),
        (nn.CELU(-1.0), "alpha"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_settings_that_break_a_rule_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(UnboundedModuleError, match=rf"'0'.*{reason}"):
        lipschitz_upper_bound(nn.Sequential(module), (1, 8))


def test_measuring_shapes_leaves_flags_and_random_numbers_alone() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return x + torch.randn_like(x)

    register_bound(Noisy)(lambda module, shape: 1.0)
    model = nn.Sequential(nn.BatchNorm1d(4), Noisy(), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    model[2].eval()
    before, rng = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    lipschitz_upper_bound(model, (4,))
    assert output_shape(model, (4,)) == (2,)
    assert [m.training for m in model] == [True, True, False, True]
    assert torch.equal(rng, torch.get_rng_state())  # moved
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())  # moved


def test_shapes_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ShapeError, match=r"Linear does not take an input of shape \(4,\)"):
        lipschitz_upper_bound(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (4,))
    with pytest.raises(ShapeError, match="input_shape"):
        lipschitz_upper_bound(nn.ReLU(), (3, 0))
    with pytest.raises(DtypeError, match="function"):
        lipschitz_upper_bound(torch.relu, (3,))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_have_no_bound(value: float) -> None:
    for module in (nn.Linear(3, 3), nn.Conv1d(3, 3, 3), nn.PReLU(3), nn.BatchNorm1d(3)):
        with torch.no_grad():
            module.weight.view(-1)[1] = value
        with pytest.raises(NotFiniteError):
            lipschitz_upper_bound(module, (3, 8))


def test_normalize_subtracts_the_mean_and_divides_by_std_channel_by_channel() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    layer, x = Normalize(mean, std), torch.rand(2, 3, 4, 5)
    y = layer(x)
    for c in range(3):
        torch.testing.assert_close(y[:, c], (x[:, c] - mean[c]) / std[c])
    torch.testing.assert_close(layer(x[0]), y[0])
    torch.testing.assert_close(Normalize(0.1, 0.5)(x), (x - 0.1) / 0.5)
    torch.testing.assert_close(Normalize(mean, std, dim=1)(x[..., 0]), y[..., 0])


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4))
def test_the_bound_of_normalize_is_one_over_the_least_std_rounded_up(std: list[float]) -> None:
    layer = Normalize(0.0, std)
    exact = 1 / Fraction(float(layer.std.min()))
    bound = Fraction(lipschitz_upper_bound(layer, (len(std), 2, 2)))
    assert exact <= bound <= exact * (1 + Fraction(1, 2**51))


def test_a_std_that_is_not_positive_is_refused_when_given_and_when_loaded() -> None:
    for std in (0.0, (0.5, -1.0, 0.5)):
        with pytest.raises(ArgumentError, match="std must be > 0"):
            Normalize(0.5, std)
    layer = Normalize(0.5, 0.5)
    layer.std.zero_()
    with pytest.raises(NotFiniteError):
        lipschitz_upper_bound(layer, (3, 2, 2))


def test_channels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"3 channels.*4 of them"):
        Normalize((0.1, 0.2, 0.3), 1.0)(torch.zeros(1, 4, 2, 2))
    with pytest.raises(ShapeError, match="as many"):
        Normalize((0.1, 0.2), (1.0, 1.0, 1.0))
    with pytest.raises(ArgumentError, match="mean"):
        Normalize(math.nan, 1.0)
