"""Frozen models: the same outputs, gains and certificates of what is stored, and errors instead of surprises."""

import copy
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from skewconv import models
from skewconv import nn as snn
from skewconv.certify import Certifier, radii
from skewconv.errors import ArgumentError, ShapeError, SkewconvError
from skewconv.frozen import freeze, load_frozen, save_frozen
from skewconv.models.parts import CONVOLUTIONS
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.gains import gain_bounds, proven_gain
from skewconv.nn.primitives import Convolution, Dense, Primitive, SkewExponential, Spectral
from skewconv.ops import dense_matrix, polynomial
from tests.certify.oracles import dense_of, float64_program

CIRCULAR = {"padding_mode": "circular"}

# (layer, image shape, the frozen kind expected)
LAYERS = [
    (lambda: snn.SOC2d(3, 3, 3), (3, 4, 4), Dense),
    (lambda: snn.SOC2d(2, 8, 3, stride=2), (2, 4, 4), Dense),
    (lambda: snn.SOC2d(8, 2, 3, bias=False), (8, 3, 3), Dense),
    (lambda: snn.SOC2d(4, 4, 3, groups=2, dilation=2), (4, 5, 5), None),
    (lambda: snn.SOC2d(2, 2, 3), (2, 32, 32), SkewExponential),
    (lambda: snn.SOC2d(2, 2, 3, stride=2), (2, 32, 32), SkewExponential),
    (lambda: snn.SOCTranspose2d(8, 2, 3, stride=2), (8, 16, 16), SkewExponential),
    (lambda: snn.SOCTranspose2d(8, 2, 3, stride=2), (8, 2, 2), Dense),
    (lambda: snn.SOC2d(3, 3, 3, **CIRCULAR), (3, 4, 6), Spectral),
    (lambda: snn.SOC2d(2, 4, 3, stride=2, **CIRCULAR), (2, 6, 4), Spectral),
    (lambda: snn.SOC2d(6, 2, 5, groups=2, **CIRCULAR), (6, 5, 5), Spectral),
    (lambda: snn.SOC2d(3, 3, 3, **CIRCULAR), (3, 1, 1), Spectral),
    (lambda: snn.SOCTranspose2d(8, 2, 3, stride=2, **CIRCULAR), (8, 3, 3), Spectral),
    (lambda: snn.SOC1d(3, 5, 3, **CIRCULAR), (3, 9), Spectral),
    (lambda: snn.SOC1d(1, 2, 3, **CIRCULAR), (1, 70), Spectral),
    # More than 32 pixels are transformed along one axis after the other.
    (lambda: snn.SOC2d(2, 4, 3, groups=2, **CIRCULAR), (2, 9, 10), Spectral),
    (lambda: snn.SOC2d(1, 4, 3, stride=2, **CIRCULAR), (1, 16, 18), Spectral),
    (lambda: snn.SOCTranspose2d(4, 1, 3, stride=2, **CIRCULAR), (4, 5, 13), Spectral),
    *((lambda: snn.SOC2d(1, 1, 3, **CIRCULAR), (1, *size), Spectral) for size in ((2, 34), (34, 2), (1, 65), (65, 1))),
    (lambda: snn.SOC3d(2, 2, 3), (2, 2, 3, 2), Dense),
    (lambda: snn.SUC2d(2, 2, 3), (2, 3, 3), Dense),
    (lambda: snn.SUC1d(2, 2, 3, **CIRCULAR), (2, 5), None),
    (lambda: snn.BCOP2d(2, 4, 3, stride=2), (2, 4, 4), Convolution),
    (lambda: snn.SOC2d(3, 3, 3, series="taylor", eval_degree=5), (3, 4, 4), Dense),
    (lambda: snn.SOC2d(3, 3, 3, series="taylor", eval_degree=5, **CIRCULAR), (3, 4, 4), Spectral),
]


@pytest.mark.parametrize(("build", "shape", "kind"), LAYERS)
def test_a_frozen_layer_is_the_same_map_with_a_proven_gain(build, shape, kind):
    layer = build().eval()
    frozen = freeze(layer, shape).model
    if kind is not None:
        assert type(frozen) is kind
    dtype = getattr(layer, "filter_dtype", torch.float32)
    x = torch.randn(3, *shape, dtype=dtype)
    torch.testing.assert_close(frozen(x), layer(x), atol=5e-6, rtol=0)
    torch.testing.assert_close(frozen(x[0]), layer(x[0]), atol=5e-6, rtol=0)
    zero = frozen(torch.zeros(1, *shape, dtype=dtype))
    if math.prod(shape) <= 256:
        matrix = dense_matrix(lambda x: frozen(x) - zero, shape, dtype=dtype)
        values = np.linalg.svd(matrix.detach().to(torch.complex128).numpy(), compute_uv=False)
        low, high = gain_bounds(frozen)
        assert values.max() <= high + 2e-6
        assert values.min() >= low - 2e-6
        assert high <= layer.gain_bounds()[1] + 1e-6
        # Tight as well as true.
        assert values.max() >= high - (1e-5 if high <= 1 else 0.05)
    if getattr(layer, "eval_polynomial", None) is None or layer.eval_polynomial.degree is None:
        assert gain_bounds(frozen)[1] <= 1.0


@pytest.mark.parametrize(
    ("conv", "padding_mode"),
    [*((name, "zeros") for name in CONVOLUTIONS if name != "standard"), ("soc", "circular"), ("resnet", "zeros")],
)
def test_a_frozen_network_gives_the_same_logits_and_comes_back_to_the_bit(conv, padding_mode, tmp_path):
    shape, x = (3, 16, 16), torch.rand(4, 3, 16, 16)
    if conv == "resnet":
        model = models.resnet18(conv="soc", width=4)
        with torch.no_grad():
            model(torch.rand(8, *shape))
        tolerance = {"atol": 1e-4, "rtol": 1e-4}
    else:
        model = models.LipConvnet(10, width=4, input_size=16, conv=conv, padding_mode=padding_mode)
        tolerance = {"atol": 2e-5, "rtol": 0}
    frozen = freeze(model.eval(), shape)
    torch.testing.assert_close(frozen(x), model(x), **tolerance)
    bound = lipschitz_upper_bound(frozen, shape)
    assert bound <= 1 / 0.2507 * (1 + 1e-5) or conv == "resnet"
    assert not any(hasattr(module, "lower") for module in frozen.model.modules())
    assert not any(p.requires_grad for p in frozen.parameters())
    again = load_frozen(save_frozen(frozen, tmp_path / "model.safetensors"))
    assert torch.equal(again(x), frozen(x))  # repeated
    assert torch.equal(copy.deepcopy(frozen)(x), frozen(x))  # repeated
    # Proven anew, by other means.
    assert lipschitz_upper_bound(again, shape) == pytest.approx(bound, rel=1e-5)


def test_a_larger_tolerance_takes_fewer_steps_from_the_tight_bound():
    layer = snn.SOC2d(4, 4, 3).eval()
    exact, rough = freeze(layer, (4, 32, 32)).model, freeze(layer, (4, 32, 32), tol=1e-3).model
    assert exact.polynomial.norm_bound < layer.polynomial().norm_bound
    assert rough.polynomial.degree < exact.polynomial.degree < layer.polynomial().degree
    x = torch.randn(2, 4, 32, 32)
    assert (exact(x) - layer(x)).norm() <= 2e-6 * x.norm()
    assert (rough(x) - layer(x)).norm() <= 1e-3 * x.norm()


def test_freezing_leaves_the_model_alone_and_does_not_follow_it():
    model = models.LipConvnet(5, width=2).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    frozen = freeze(model, (3, 32, 32))
    assert model.training
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())  # moved
    x = torch.rand(2, 3, 32, 32)
    expected = frozen(x)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3).add_(1)
    assert torch.equal(frozen(x), expected)  # repeated


def test_wrong_sizes_training_and_foreign_files_are_refused(tmp_path):
    frozen = freeze(models.LipConvnet(5, in_channels=1, input_size=8, width=2), (1, 8, 8))
    (tmp_path / "bad.safetensors").write_bytes(b"not a model")
    path = save_frozen(frozen, tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    for run, error, words in (
        (lambda: frozen(torch.rand(1, 1, 16, 16)), ShapeError, "frozen for inputs of shape"),
        (lambda: frozen.model.body[1](torch.rand(1, 2, 8, 8)), ShapeError, "frozen for inputs"),
        (frozen.train, ArgumentError, "cannot be trained"),
        (lambda: freeze("model", (1, 8, 8)), ArgumentError, r"nn\.Module"),
        (lambda: freeze(nn.Identity(), (1, 8, 8), tol=0), ArgumentError, "tol"),
        (lambda: load_frozen(tmp_path / "bad.safetensors"), SkewconvError, r"bad\.safetensors"),
        (lambda: load_frozen(tmp_path / "missing.safetensors"), SkewconvError, "missing"),
        (lambda: load_frozen(path), SkewconvError, r"model\.safetensors"),
        (lambda: save_frozen(freeze(nn.Hardswish(), (4,)), tmp_path / "other.safetensors"), ArgumentError, "Hardswish"),
    ):
        with pytest.raises(error, match=words):
            run()
    assert not (tmp_path / "other.safetensors").exists()


def test_a_layer_that_meets_two_sizes_cannot_be_frozen():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = snn.SOC2d(2, 2, 3)

        def forward(self, x):
            return self.layer(x), self.layer(x[..., ::2])

    with pytest.raises(ShapeError, match="layer"):
        freeze(Twice(), (2, 4, 4))


# A layer of each frozen form, and the shape of its images.
FORMS = {
    Dense: (lambda **options: snn.SOC2d(3, 4, 3, **options), (3, 4, 4)),
    SkewExponential: (lambda **options: snn.SOC2d(2, 2, 3, stride=2, **options), (2, 32, 32)),
    Spectral: (lambda **options: snn.SOC2d(3, 4, 3, **CIRCULAR, **options), (3, 5, 6)),
    Convolution: (lambda **options: snn.BCOP2d(2, 4, 3, stride=2), (2, 4, 4)),
}


def stored_map(layer: Primitive) -> torch.Tensor:
    return dense_of(layer, layer.input_shape)


def circular(norm_bound, channels, stride):
    return lambda: snn.SOC2d(channels, channels * stride**2, 3, stride, norm_bound=norm_bound, **CIRCULAR)


# Of a spectral layer the tables are rounded, too.
SPECTRAL = [
    (0.01, (1, 2, 2), 2),
    (1.0, (2, 4, 4), 1),
    (2.1, (3, 3, 5), 1),
    (2.1, (2, 1, 7), 1),
    (2.1, (2, 8, 8), 2),
    (2.1, (1, 9, 8), 1),
]


@pytest.mark.parametrize(
    ("kind", "build", "shape"),
    [(kind, *form) for kind, form in FORMS.items()]
    + [(Spectral, circular(bound, shape[0], stride), shape) for bound, shape, stride in SPECTRAL],
)
def test_the_gain_that_is_kept_and_the_one_proven_anew_hold_and_are_tight(kind, build, shape):
    torch.manual_seed(0)
    frozen = freeze(build().eval(), shape).model
    assert type(frozen) is kind
    kept, anew = gain_bounds(frozen), proven_gain(frozen)
    assert kept[1] <= 1.0
    assert anew[1] <= kept[1] + 1e-5
    if frozen.is_injective():
        assert kept[0] - 1e-5 <= anew[0]
        assert kept[0] >= 1 - 1e-5
    if kind is not SkewExponential:
        values = torch.linalg.svdvals(stored_map(frozen))
        for low, high in (kept, anew):
            # The oracle's own rounding is a few units in the last place of float64.
            assert low - 1e-13 <= float(values.min()) <= float(values.max()) <= high + 1e-13


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_the_program_of_a_frozen_layer_errs_by_less_than_it_says(kind):
    build, shape = FORMS[kind]
    torch.manual_seed(0)
    frozen = copy.deepcopy(freeze(build().eval(), shape).model).double()
    program = float64_program(frozen, shape)
    x = torch.randn(4, *shape, dtype=torch.float64)
    allowed = program.bounds.error.at(float(x.flatten(1).norm(dim=1).max()))
    assert 0 < allowed < 1e-9
    assert float((program.run(x) - frozen(x)).flatten(1).norm(dim=1).max()) <= 2 * allowed


@pytest.mark.parametrize(
    ("conv", "tol"),
    [("circular", 1e-2), ("soc", 1e-2), *((name, 1e-6) for name in ("circular", *CONVOLUTIONS) if name != "standard")],
)
def test_the_radii_of_a_frozen_network_are_those_of_what_it_stores(conv, tol):
    torch.manual_seed(0)
    options = CIRCULAR if conv == "circular" else {}
    kind = "soc" if conv == "circular" else conv
    model = models.LipConvnet(5, in_channels=1, input_size=8, width=4, conv=kind, **options).eval()
    frozen = freeze(model, (1, 8, 8), tol=tol)
    images = torch.rand(20, 1, 8, 8)
    labels = model(images).argmax(1)
    certifier = Certifier(frozen, (1, 8, 8))
    found = certifier(images, labels)
    exact = copy.deepcopy(frozen).double()
    torch.testing.assert_close(certifier.logits(images), exact(images.double()), rtol=0, atol=1e-9)
    assert certifier.lipschitz <= lipschitz_upper_bound(frozen, (1, 8, 8)) * (1 + 1e-5)
    torch.testing.assert_close(found.radii, radii(model, images, labels), rtol=0, atol=10 * tol)
    assert (found.radii > 0).any()


def edited(path, change):
    """The file at the path with a change of its tensors or its description."""
    with safe_open(str(path), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        description = json.loads(file.metadata()["skewconv"])
    change(tensors, description)
    save_file(tensors, str(path), metadata={"skewconv": json.dumps(description)})


def test_a_file_of_another_version_and_a_kind_that_is_not_known_are_refused(tmp_path):
    path = save_frozen(freeze(nn.Sequential(snn.MaxMin()), (2, 2, 2)), tmp_path / "model.safetensors")
    edited(path, lambda _, description: description["model"]["children"]["0"].update(kind="Yours"))
    with pytest.raises(SkewconvError, match=r"'model\.0' is a 'Yours', which is not known here"):
        load_frozen(path)
    edited(path, lambda _, description: description.update(format=1))
    with pytest.raises(SkewconvError, match=r"format 1, here 3\); freeze the model again"):
        load_frozen(path)


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_what_a_file_says_of_its_gain_its_weights_and_its_shapes_is_not_believed(kind, tmp_path):
    build, shape = FORMS[kind]
    torch.manual_seed(0)
    path = save_frozen(freeze(build().eval(), shape), tmp_path / "layer.safetensors")
    honest = gain_bounds(load_frozen(path).model)
    edited(path, lambda _, description: description["model"]["settings"].update(gain=[0.0, 0.001]))
    assert gain_bounds(load_frozen(path).model) == honest
    edited(path, lambda tensors, _: tensors["model.weight"].mul_(2))
    if kind is SkewExponential:
        with pytest.raises(SkewconvError, match="norm of at most"):
            load_frozen(path)
    else:
        assert 1.99 <= gain_bounds(load_frozen(path).model)[1] <= 2.01
    if kind is Spectral:
        edited(path, lambda tensors, _: tensors["model.end_table"].mul_(1.5))
        loaded = load_frozen(path)
        assert float(torch.linalg.svdvals(stored_map(loaded.model)).max()) <= gain_bounds(loaded.model)[1]

    def shrink(tensors, description):
        channels, *size = description["model"]["settings"]["output_shape"]
        description["model"]["settings"]["output_shape"] = [channels, *(1 for _ in size)]

    edited(path, shrink)
    with pytest.raises(SkewconvError, match=r"states outputs of shape|do not fit|unflatten|norm of at most"):
        load_frozen(path)


@pytest.mark.parametrize("kernel", [(1, 3), (3, 1), (1, 5), (3, 5)])
def test_the_gain_of_a_kernel_that_is_no_square_counts_all_of_its_taps(kernel):
    weight = torch.zeros(1, 1, *kernel)
    weight[0, 0, 0, 0], weight[0, 0, -1, -1] = 1.0, 0.09
    layer = Convolution(weight=weight, stride=(1, 1), input_shape=(1, 9, 9), output_shape=(1, 9, 9))
    assert proven_gain(layer)[1] >= float(torch.linalg.matrix_norm(stored_map(layer), 2)) > 1.05


@pytest.mark.parametrize("stride", [2, 4, 8])
def test_the_bias_of_a_spectral_layer_that_upsamples_is_added_on_all_of_its_pixels(stride):
    torch.manual_seed(0)
    layer = snn.SOCTranspose2d(stride**2, 1, 3, stride, dtype=torch.float64, **CIRCULAR).eval()
    with torch.no_grad():
        layer.bias.fill_(1.0)
    frozen = freeze(nn.Sequential(layer), (stride**2, 4, 4)).model[0]
    assert isinstance(frozen, Spectral)
    x = torch.randn(1, stride**2, 4, 4, dtype=torch.float64)
    x *= 1e-9 / x.norm()
    pairs = zip(frozen.map_batch(x).flatten().tolist(), frozen.linear(x).flatten().tolist(), strict=True)
    # What adding the bias rounds, in exact arithmetic.
    lost = math.sqrt(sum(float(Fraction(sum_) - Fraction(term) - 1) ** 2 for sum_, term in pairs))
    assert 0 < lost <= float64_program(frozen, (stride**2, 4, 4)).bounds.error.at(float(x.norm()))


def test_a_gain_is_proven_anew_for_tensors_and_settings_changed_after_its_proof():
    for options in ({}, CIRCULAR):
        small = freeze(snn.SOC2d(3, 4, 3, **options).eval(), (3, 6, 6))
        assert lipschitz_upper_bound(small, (3, 6, 6)) <= 1
        small.model.weight.data.view(-1)[0].add_(1.0)
        assert lipschitz_upper_bound(small, (3, 6, 6)) > 1.01
    frozen = freeze(nn.Sequential(snn.SOC2d(2, 2, 3)), (2, 32, 32))
    layer = frozen.model[0]
    assert isinstance(layer, SkewExponential)
    layer.polynomial = polynomial(layer.polynomial.norm_bound, 1, "taylor")
    assert lipschitz_upper_bound(frozen, (2, 32, 32)) == layer.polynomial.gain[1] > 1.1


@pytest.mark.parametrize("kind", [snn.BCOP2d, snn.Cayley2d])
def test_where_channels_are_cut_off_no_least_gain_is_stated(kind):
    torch.manual_seed(0)
    frozen = freeze(nn.Sequential(kind(2, 1, 3, bias=False).eval()), (2, 4, 4)).model[0]
    assert gain_bounds(frozen)[0] == proven_gain(frozen)[0] == 0.0
    assert int(torch.linalg.matrix_rank(stored_map(frozen), atol=1e-5)) == 16 < 32


@pytest.mark.parametrize(("size", "real", "pairs"), [((1, 1), 1, 0), ((2, 2), 4, 0), ((4, 6), 4, 10), ((3, 5), 1, 7)])
def test_real_frequencies_are_stored_as_real_ones_and_of_conjugates_one(size, real, pairs):
    layer = snn.SOC2d(2, 3, 3, bias=False, dtype=torch.float64, **CIRCULAR).eval()
    frozen = freeze(nn.Sequential(layer), (2, *size)).model[0]
    assert isinstance(frozen, Spectral)
    assert frozen.real_weight.shape == (real, 2, 3)
    assert frozen.weight.shape == (pairs, 4, 6)
