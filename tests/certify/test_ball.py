"""The judge in ball arithmetic: it agrees with honest certificates, and notices each fault that is planted."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import skewconv
from skewconv.certify import certify_dataset, check_certificates, check_in_balls
from skewconv.errors import UnboundedModuleError
from skewconv.models import LipConvnet
from skewconv.models.resnet import ResidualBlock
from skewconv.nn import (
    AOL2d,
    GroupSort,
    InvertibleDownsample,
    Normalize,
    SLL2d,
    SOC1d,
    SOC2d,
    SOC3d,
    SOCTranspose2d,
    lower,
)
from skewconv.nn.gains import with_gain
from tests.certify.oracles import in_float64

IMAGE = (1, 8, 8)


def net(depth: int = 5, **options: object) -> LipConvnet:
    return LipConvnet(depth, in_channels=1, input_size=8, width=options.pop("width", 2), **options).eval()


def ended(*layers: nn.Module, features: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3)).eval()


def frozen(model: nn.Module, shape: tuple[int, ...] = IMAGE) -> nn.Module:
    return skewconv.freeze(model, shape)


def block(outputs: int, stride: int) -> ResidualBlock:
    return ResidualBlock((3,), (2, outputs), stride, SOC2d)


# Each layer and each primitive, alone or in a network, by the arithmetic of its kind.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "soc, zeros": (lambda: net(width=4), IMAGE),
    "soc, circular": (lambda: net(10, padding_mode="circular"), IMAGE),
    "soc, head of soc": (lambda: net(head="conv"), IMAGE),
    "soc, expansive": (lambda: net(conv_options={"series": "taylor", "eval_degree": 2}), IMAGE),
    "soc, norm tracked": (lambda: net(conv_options={"norm": "tracked"}), IMAGE),
    "soc, groups, dilation": (lambda: ended(SOC1d(2, 4, 3, groups=2, dilation=2), features=24), (2, 6)),
    "soc, three axes": (lambda: nn.Sequential(SOC3d(1, 8, 3, stride=2), GroupSort(None), nn.Flatten()), (1, 4, 2, 2)),
    "soc, odd sides": (lambda: LipConvnet(5, 3, in_channels=1, input_size=(9, 14), width=2), (1, 9, 14)),
    "adjoint, batch norm": (
        lambda: ended(SOCTranspose2d(4, 2, 3, stride=2), nn.BatchNorm2d(2), nn.ReLU(), features=32),
        (4, 2, 2),
    ),
    "adjoint, norm tracked": (
        lambda: ended(SOCTranspose2d(4, 2, 3, stride=2, padding_mode="circular", norm="tracked"), features=32),
        (4, 2, 2),
    ),
    "householder, unit rows": (lambda: net(activation="householder2", head="normalized"), IMAGE),
    "unequal deviations": (
        lambda: nn.Sequential(
            Normalize(0.5, (0.2, 0.3)), InvertibleDownsample(2), SOC2d(8, 6, (3, 2), groups=2), nn.Flatten()
        ),
        (2, 4, 4),
    ),
    "bcop, groupsort": (lambda: net(conv="bcop", activation="groupsort"), IMAGE),
    "cayley": (lambda: net(conv="cayley"), IMAGE),
    "aol": (lambda: net(conv="aol"), IMAGE),
    "aol, circular": (lambda: ended(AOL2d(2, 4, 4, 2, padding_mode="circular"), nn.Dropout(), features=16), (2, 4, 4)),
    "sll": (lambda: net(conv="sll"), IMAGE),
    "sll, circular": (lambda: ended(SLL2d(2, 3, 4, 2, padding_mode="circular"), features=27), (2, 6, 6)),
    "cpl": (lambda: net(conv="cpl"), IMAGE),
    "frozen": (lambda: frozen(net()), IMAGE),
    "frozen, circular": (lambda: frozen(net(padding_mode="circular")), IMAGE),
    "frozen, large": (
        lambda: frozen(ended(SOC2d(2, 2, 3, groups=2, padding_mode="circular"), features=180), (2, 9, 10)),
        (2, 9, 10),
    ),
    "frozen, bcop": (lambda: frozen(net(conv="bcop")), IMAGE),
    "frozen, sll": (lambda: frozen(ended(SLL2d(2, 9, 3, 2), features=81), (2, 6, 6)), (2, 6, 6)),
    "frozen, adjoint": (
        lambda: frozen(
            nn.Sequential(SOCTranspose2d(4, 2, 3, 2, padding_mode="circular"), nn.Flatten()).eval(), (4, 2, 3)
        ),
        (4, 2, 3),
    ),
    "plain convolutions, pools": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=2, dilation=2, groups=2, padding_mode="circular"),
            nn.Conv2d(4, 4, (2, 3), stride=(1, 2), padding=1),
            nn.MaxPool2d(2, 1),
            nn.AvgPool2d(2),
            nn.ZeroPad2d(1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        (2, 6, 6),
    ),
    "plain, other axes": (lambda: ended(nn.Conv3d(1, 2, 2), nn.MaxPool3d(2, 1), features=16), (1, 4, 4, 4)),
    "residual sums": (lambda: ended(block(2, 1), block(4, 2), features=16), (2, 4, 4)),
    "one layer": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), (1, 4, 4)),
}


def certified(model: nn.Module, shape: tuple[int, ...], folder: Path, count: int = 6):
    images = torch.rand(count, *shape)
    with torch.no_grad():
        labels = in_float64(model)(images.double()).argmax(1)
    found = certify_dataset(model, images, labels)
    found.write(folder)
    return images, labels, found


@pytest.mark.parametrize("name", MODELS)
def test_honest_certificates_hold_in_float64_and_are_proved_in_balls_without_tolerance(name, tmp_path):
    torch.manual_seed(1)
    build, shape = MODELS[name]
    model = build().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    images, labels, found = certified(model, shape, tmp_path)
    assert bool((found.radius > 0).all())
    again = check_certificates(tmp_path, model, images, labels)
    assert again.problems == ()
    assert again.largest_ratio == pytest.approx(1, abs=1e-6)
    report = check_in_balls(tmp_path, model, images, labels)
    assert report.problems == ()
    assert report.checked == len(images)
    # Never above what is proven, and hardly below it, but where the norm at the image's own size is smaller.
    assert (0.8 if name.startswith(("frozen", "plain", "aol")) else 1 - 1e-8) < report.largest_ratio <= 1
    assert report.error < 1e-9


def test_balls_hold_the_logits_of_arb_matrices():
    """Against python-flint's own matrices, entry by entry: another implementation of the same layer."""
    from flint import arb, arb_mat, ctx

    from skewconv.ball.array import from_floats
    from skewconv.ball.layers import Frame, skew_exponential

    layer = in_float64(SOC2d(2, 2, 3, bias=False))
    weight, p = layer.weight.detach().numpy(), layer.polynomial()
    x = torch.rand(1, 2, 3, 3, dtype=torch.float64)
    jacobian = skewconv.ops.dense_jacobian(layer.weight.detach(), 3).tolist()
    with ctx.workprec(200):
        frame = Frame((3, 3), False, (1, 1), (1, 1))
        given = (weight, p.coefficients, p.norm_bound, p.series, 2, None, frame)
        ball = skew_exponential(*given).run(from_floats(x.numpy()))
        z = arb_mat(jacobian) * (1 / arb(p.norm_bound))
        before, now = arb_mat(x.reshape(-1, 1).tolist()), z * arb_mat(x.reshape(-1, 1).tolist())
        total = before * arb(p.coefficients[0])
        for c in p.coefficients[1:]:
            total, before, now = total + now * arb(c), now, z * now * arb(2) + before
        unit = arb(2) ** ball.exponent
        off = [total[i, 0] - int(m) * unit for i, m in enumerate(ball.mantissa.reshape(-1).tolist())]
        distance = sum((d * d for d in off), arb(0)).sqrt()
    assert bool(distance <= ball.error)
    assert float(ball.error) < 1e-12


def test_products_of_slices_are_exact_and_a_rounding_product_is_noticed(monkeypatch):
    from skewconv.ball import exact

    rng = np.random.default_rng(0)
    for terms in (1, 7, 3000):
        left = rng.integers(-(2**52), 2**52, (3, terms))
        right = rng.standard_normal((terms, 4))
        cut = exact.sliced(right)
        sums = exact.product(exact.integer_slices(left, cut.width), cut)
        mantissa, drop = exact.rounded(sums, cut.width, 54)
        whole = [
            [sum(int(s[i, j]) << (cut.width * k) for k, s in enumerate(cut.slices)) for j in range(4)]
            for i in range(terms)
        ]
        for i, j in np.ndindex(3, 4):
            wanted = sum(int(left[i, k]) * whole[k][j] for k in range(terms))
            assert abs((int(mantissa[i, j]) << drop) - wanted) < 2 << drop
    single = exact.Sliced(tuple(s.astype(np.float32) for s in cut.slices), cut.exponent, cut.probe, cut.probed)
    halves = [part.astype(np.int64) for part in exact.integer_slices(left, cut.width)]
    monkeypatch.setattr(np, "float64", np.float32)
    with pytest.raises(exact.InexactProductError, match="BLAS"):
        exact.product(halves, single)


def test_norms_are_above_the_truth_and_close_to_it():
    from skewconv.ball.norms import skew_norm_upper_bound, spectral_norm_upper_bound, torus_norm_upper_bound

    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-560, 2.0**500):
        matrix = rng.standard_normal((20, 30)) * scale
        true = float(np.linalg.norm(matrix / scale, 2)) * scale
        assert true * (1 - 1e-13) <= float(spectral_norm_upper_bound(matrix)) <= true * (1 + 1e-10)
        # A target that is not met is no bound.
        assert float(spectral_norm_upper_bound(matrix, 0.9 * true)) >= true * (1 - 1e-13)
    weight = rng.standard_normal((4, 4, 3, 3))
    jacobian = skewconv.ops.dense_jacobian(torch.from_numpy(weight), 6, "circular")
    true = float(torch.linalg.matrix_norm(jacobian, 2))
    assert true * (1 - 1e-13) <= float(torus_norm_upper_bound(weight, (6, 6))) <= true * (1 + 1e-10)
    # By a reshape where that meets the target, else on the torus.
    assert float(skew_norm_upper_bound(weight, 9 * true, (6, 6), (1, 1))) >= true * (1 + 1e-3)
    assert true * (1 - 1e-13) <= float(skew_norm_upper_bound(weight, true, (6, 6), (1, 1))) <= true * (1 + 1e-10)
    assert float(spectral_norm_upper_bound(np.zeros((2, 3)))) == 0.0


def test_an_image_in_zeros_needs_room_on_its_torus_for_taps_that_would_cancel_there():
    from skewconv.ball.layers import Frame, convolution, residual_step, skew_exponential

    weight, ones = np.zeros((1, 1, 3, 3)), (1, 1)
    weight[0, 0, 1] = -1.0, 1.0, 0.0
    pixel, pair = (Frame(size, False, ones, ones) for size in ((1, 1), (1, 2)))
    assert float(convolution(weight, None, [(1, 1)] * 2, pixel).norm) >= 1
    assert float(residual_step(weight, np.ones(1), None, 1, pixel).norm) >= 1
    weight[0, 0, 1] = -1.0, 0.0, 1.0
    assert float(skew_exponential(weight, (1.0, 1.0), 1.0, "taylor", 1, None, pair).norm) >= 1


@pytest.mark.parametrize(
    ("rho", "degree", "series"), [(2.1, 5, "taylor"), (2.1, 4, "chebyshev"), (3.5, 11, "taylor"), (1.0, 0, "taylor")]
)
def test_the_gain_is_that_of_exact_arithmetic(rho, degree, series):
    from flint import arb, ctx

    from skewconv.ball.layers import largest_gain, power_coefficients
    from skewconv.ops.polynomials import polynomial

    p = polynomial(rho, degree, series)
    with ctx.workprec(128):
        found = largest_gain(power_coefficients(p.coefficients, rho, series), arb(rho))
    assert float(found) == pytest.approx(p.gain[1], rel=1e-14)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    torch.manual_seed(0)
    model = net(width=4)
    folder = tmp_path_factory.mktemp("honest")
    return model, *certified(model, (1, 8, 8), folder)


def test_a_radius_too_large_by_one_part_in_a_thousand_million_is_named(honest, tmp_path):
    model, images, labels, found = honest
    for factor in (1 + 1e-8, 2.0, math.inf, math.nan, -1.0):
        edited = found.radius.clone()
        edited[5] *= factor
        dataclasses.replace(found, radius=edited).write(tmp_path)
        problems = check_in_balls(tmp_path, model, images, labels).problems
        assert [p for p in problems if p.startswith("image 5: radius")] == list(problems), factor
        assert len(problems) == 1


def test_a_gain_that_nothing_proves_is_noticed(tmp_path):
    """A wrong proof: a filter eight times too large is said not to expand."""
    torch.manual_seed(0)
    layer = lower(SOC2d(2, 2, 3).double().eval(), (2, 4, 4))
    layer.weight.mul_(8)
    model = nn.Sequential(with_gain(layer, (0.0, 1.0)), nn.Flatten(), nn.Linear(32, 3).double()).eval()
    images, labels, _ = certified(model, (2, 4, 4), tmp_path)
    report = check_in_balls(tmp_path, model, images, labels)
    assert report.layers[0].norm > 2.1
    assert report.layers[0].lipschitz > 1.5
    assert sum("is proven" in p for p in report.problems) == len(images)


def test_a_layer_that_is_lowered_to_another_function_is_noticed(honest, tmp_path, monkeypatch):
    """A cache that was not renewed."""
    model, images, labels, found = honest
    found.write(tmp_path)
    plain = SOC2d.weight.fget
    monkeypatch.setattr(SOC2d, "weight", property(lambda self: -plain(self)))
    for check in (check_certificates, check_in_balls):
        with pytest.raises(UnboundedModuleError, match="something else"):
            check(tmp_path, model, images, labels)


def test_a_scale_that_is_too_large_for_a_residual_step_is_noticed(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(SLL2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)).eval()
    images, labels, _ = certified(model, (1, 4, 4), tmp_path, 3)
    plain = SLL2d.scale.fget
    monkeypatch.setattr(SLL2d, "scale", property(lambda self: 4 * plain(self)))
    report = check_in_balls(tmp_path, model, images, labels)
    assert report.layers[0].lipschitz > 1.5
    assert sum("is proven" in p for p in report.problems) == 3


def test_layers_without_a_proof_are_named(tmp_path):
    model = nn.Sequential(nn.Hardtanh(), nn.Flatten(), nn.Linear(16, 3)).eval()
    images, labels, _ = certified(model, (1, 4, 4), tmp_path, 2)
    with pytest.raises(UnboundedModuleError, match=r"'0' \(torch.*Hardtanh\).*cannot be proven in ball arithmetic"):
        check_in_balls(tmp_path, model, images, labels)


def test_the_proof_runs_where_torch_cannot_be_imported():
    """NumPy, the standard library and python-flint are all that is in the room."""
    package = Path(skewconv.__file__).parent
    program = f"""
import json, sys, types
for name in ("torch", "scipy"):
    sys.modules[name] = None
root = types.ModuleType("skewconv")
root.__path__ = [{str(package)!r}]
sys.modules["skewconv"] = root
import numpy as np
from skewconv.ball import prove
from skewconv.ball.layers import linear, max_min
layers = [("1", "Linear", linear(np.array([[2.0, 0.0], [0.0, 1.0]]), None)), ("2", "MaxMin", max_min())]
proof = prove(layers, np.array([[1.0, 0.25]]), np.array([0]))
print(json.dumps([float(proof.radii[0]), proof.lipschitz]))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    radius, lipschitz = json.loads(answer.stdout)
    assert lipschitz == pytest.approx(2.0, rel=1e-12)
    assert radius == pytest.approx(1.75 / (2 * math.sqrt(2)), rel=1e-12)
