"""Nothing that is offered is silently left out: every layer answers certify, freeze, the store and audit."""

from functools import partial

import pytest
import torch
from torch import nn

from skewconv.certify import audit, programs
from skewconv.errors import DtypeError, UnboundedModuleError
from skewconv.frozen import freeze, load_frozen, save_frozen
from skewconv.models.parts import ACTIVATIONS, CONVOLUTIONS, HEADS
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.bounds import lipschitz_bound
from skewconv.nn.module_tools import float64_copy
from tests.lowered import float64_program
from tests.nn.rows import COMPLEX_ROWS, ROWS, built

# An example of each of PyTorch's own types, and the shape of one input.
TORCH = {
    nn.Identity: (nn.Identity(), (3,)),
    nn.Flatten: (nn.Flatten(), (2, 3)),
    nn.Unflatten: (nn.Unflatten(1, (2, 3)), (6,)),
    nn.PixelShuffle: (nn.PixelShuffle(2), (4, 2, 2)),
    nn.PixelUnshuffle: (nn.PixelUnshuffle(2), (1, 4, 4)),
    nn.ChannelShuffle: (nn.ChannelShuffle(2), (4, 2, 2)),
    nn.Dropout: (nn.Dropout(0.3), (3,)),
    nn.Dropout1d: (nn.Dropout1d(0.3), (2, 3)),
    nn.Dropout2d: (nn.Dropout2d(0.3), (2, 3, 3)),
    nn.Dropout3d: (nn.Dropout3d(0.3), (2, 3, 3, 3)),
    nn.AlphaDropout: (nn.AlphaDropout(0.3), (3,)),
    nn.FeatureAlphaDropout: (nn.FeatureAlphaDropout(0.3), (2, 3, 3)),
    nn.ZeroPad1d: (nn.ZeroPad1d((1, 2)), (2, 3)),
    nn.ZeroPad2d: (nn.ZeroPad2d(1), (2, 3, 3)),
    nn.ZeroPad3d: (nn.ZeroPad3d(1), (2, 2, 2, 2)),
    nn.ConstantPad1d: (nn.ConstantPad1d(1, 0.5), (2, 3)),
    nn.ConstantPad2d: (nn.ConstantPad2d(1, 0.5), (2, 3, 3)),
    nn.ConstantPad3d: (nn.ConstantPad3d(1, 0.5), (2, 2, 2, 2)),
    nn.ReLU: (nn.ReLU(), (3,)),
    nn.ReLU6: (nn.ReLU6(), (3,)),
    nn.Hardtanh: (nn.Hardtanh(-0.5, 0.7), (3,)),
    nn.Tanh: (nn.Tanh(), (3,)),
    nn.Softsign: (nn.Softsign(), (3,)),
    nn.LogSigmoid: (nn.LogSigmoid(), (3,)),
    nn.Sigmoid: (nn.Sigmoid(), (3,)),
    nn.SiLU: (nn.SiLU(), (3,)),
    nn.GELU: (nn.GELU(approximate="tanh"), (3,)),
    nn.LeakyReLU: (nn.LeakyReLU(0.3), (3,)),
    nn.PReLU: (nn.PReLU(3), (3, 2)),
    nn.ELU: (nn.ELU(0.7), (3,)),
    nn.CELU: (nn.CELU(0.7), (3,)),
    nn.SELU: (nn.SELU(), (3,)),
    nn.Softmax: (nn.Softmax(1), (3,)),
    nn.Linear: (nn.Linear(3, 2, bias=False), (3,)),
    nn.Conv1d: (nn.Conv1d(2, 3, 3, padding=1), (2, 5)),
    nn.Conv2d: (nn.Conv2d(2, 4, 3, stride=2, padding="valid", groups=2, bias=False), (2, 5, 5)),
    nn.Conv3d: (nn.Conv3d(2, 3, (1, 3, 3), padding=(0, 1, 1), padding_mode="circular"), (2, 3, 3, 3)),
    nn.ConvTranspose1d: (nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 4)),
    nn.ConvTranspose2d: (nn.ConvTranspose2d(2, 3, 3), (2, 3, 3)),
    nn.ConvTranspose3d: (nn.ConvTranspose3d(2, 3, 2, bias=False), (2, 2, 2, 2)),
    nn.BatchNorm1d: (nn.BatchNorm1d(3, eps=1e-3), (3,)),
    nn.BatchNorm2d: (nn.BatchNorm2d(2, affine=False), (2, 3, 3)),
    nn.BatchNorm3d: (nn.BatchNorm3d(2), (2, 2, 2, 2)),
    nn.MaxPool1d: (nn.MaxPool1d(2), (2, 4)),
    nn.MaxPool2d: (nn.MaxPool2d(3, 2, 1), (2, 5, 5)),
    nn.MaxPool3d: (nn.MaxPool3d(2, ceil_mode=True), (2, 3, 3, 3)),
    nn.AvgPool1d: (nn.AvgPool1d(2, padding=1, count_include_pad=False), (2, 4)),
    nn.AvgPool2d: (nn.AvgPool2d((2, 1), divisor_override=3), (2, 4, 4)),
    nn.AvgPool3d: (nn.AvgPool3d(2), (2, 4, 4, 4)),
    nn.AdaptiveAvgPool1d: (nn.AdaptiveAvgPool1d(2), (2, 5)),
    nn.AdaptiveAvgPool2d: (nn.AdaptiveAvgPool2d((2, 1)), (2, 5, 5)),
    nn.AdaptiveAvgPool3d: (nn.AdaptiveAvgPool3d(1), (2, 3, 3, 3)),
    nn.Sequential: (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), (3,)),
}
# Their bound is known, and their rounding is not.
NOT_CERTIFIED = {
    *(nn.AlphaDropout, nn.FeatureAlphaDropout, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.Tanh),
    *(nn.Softsign, nn.LogSigmoid, nn.Sigmoid, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU),
    *(nn.Softmax, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
}


def test_every_type_of_the_tables_has_an_example():
    entered = {kind for kind in lipschitz_bound.registry if kind.__module__.startswith("torch.nn")}
    assert entered == set(TORCH)
    certified = {kind for kind in programs.float64_program.registry if kind.__module__.startswith("torch.nn")}
    assert certified == entered - NOT_CERTIFIED


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
    assert lipschitz_upper_bound(frozen, shape) <= lipschitz_upper_bound(layer, shape) * (1 + 1e-6)
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


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_every_part_of_the_registry_can_be_certified_frozen_and_stored(conv, tmp_path):
    torch.manual_seed(0)
    part = CONVOLUTIONS[conv](2, 4, 3, 2, "zeros", {})
    assert_program_is_the_layer(part, (2, 4, 4))
    comes_back(part, (2, 4, 4), tmp_path)


def test_activations_and_heads_of_the_registry_can_too(tmp_path):
    for build in ACTIVATIONS.values():
        assert_program_is_the_layer(build(4), (4, 3, 3))
        comes_back(build(4), (4, 3, 3), tmp_path)
    for name, build_head in HEADS.items():
        if name == "conv":
            continue  # a convolution of the network's own kind, as above
        head = partial(build_head, 6, 3, lambda c_in, c_out: nn.Identity())
        assert_program_is_the_layer(head(), (6,))
        assert float64_program(float64_copy(head()), (6,)).matrix is not None
        comes_back(head(), (6,), tmp_path)
