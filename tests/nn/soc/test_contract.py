"""The contract every skew orthogonal layer obeys, one row per layer and configuration."""

import math
import warnings
from itertools import product

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from skewconv import nn as snn
from skewconv.errors import NotInvertibleError
from skewconv.ops import dense_jacobian, dense_matrix
from tests.nn.rows import trained

TAYLOR = {"series": "taylor", "train_degree": 5, "eval_degree": 11}
CIRCULAR = {"padding_mode": "circular"}

# (layer, in_channels, out_channels, kernel_size, image size, options)
ROWS = [
    # One axis: every kernel size, channel change, stride, padding, groups, dilation.
    ("SOC1d", 3, 3, 3, 6, {}),
    ("SOC1d", 3, 3, 4, 6, CIRCULAR),
    ("SOC1d", 1, 1, 3, 6, {}),
    ("SOC1d", 2, 4, 3, 6, {"stride": 2}),
    ("SOC1d", 4, 2, 3, 6, {"groups": 2, **CIRCULAR}),
    ("SOC1d", 3, 3, 3, 7, {"dilation": 2}),
    ("SOC1d", 3, 3, 3, 7, {"bias": False, **TAYLOR}),
    ("SOC1d", 3, 3, 7, 3, {}),
    # Two axes.
    ("SOC2d", 1, 1, 1, (3, 3), {}),
    ("SOC2d", 3, 3, 2, (3, 4), {}),
    ("SOC2d", 3, 3, 3, (4, 4), {}),
    ("SOC2d", 3, 3, 3, (4, 4), CIRCULAR),
    ("SOC2d", 2, 2, 5, (4, 5), CIRCULAR),
    ("SOC2d", 2, 2, (3, 2), (3, 4), CIRCULAR),
    ("SOC2d", 2, 5, 3, (3, 4), {}),
    ("SOC2d", 5, 2, 3, (3, 4), CIRCULAR),
    ("SOC2d", 1, 6, 3, (4, 4), {"stride": 2}),
    ("SOC2d", 2, 4, 3, (3, 4), {"stride": (1, 2)}),
    ("SOC2d", 4, 4, 3, (3, 3), {"groups": 4}),
    ("SOC2d", 6, 2, 3, (3, 3), {"groups": 2, **CIRCULAR}),
    ("SOC2d", 2, 4, 3, (4, 4), {"groups": 2, "stride": 2}),
    ("SOC2d", 2, 2, 3, (5, 5), {"dilation": (1, 2), **CIRCULAR}),
    ("SOC2d", 3, 3, 3, (1, 1), {}),
    ("SOC2d", 3, 3, 3, (1, 1), CIRCULAR),
    ("SOC2d", 5, 3, 3, (4, 4), {**TAYLOR, **CIRCULAR}),
    ("SOC2d", 3, 3, 3, (4, 4), {"series": "taylor", "eval_tol": 1e-4}),
    ("SOC2d", 3, 3, 3, (4, 4), {"train_degree": 2, "eval_degree": 4}),
    ("SOC2d", 3, 3, 3, (4, 4), {"eval_tol": 1e-12}),
    ("SOC2d", 3, 3, 3, (4, 4), {"norm_bound": 3.5}),
    ("SOC2d", 3, 3, 3, (4, 4), {"norm_bound": 1e-3}),
    ("SOC2d", 3, 3, 3, (4, 4), {"recompute": True, **TAYLOR}),
    # Three axes.
    ("SOC3d", 2, 2, 3, (2, 3, 2), CIRCULAR),
    ("SOC3d", 2, 2, (1, 2, 3), (2, 3, 3), {}),
    ("SOC3d", 3, 1, 3, (2, 2, 2), {}),
    ("SOC3d", 1, 8, 3, (2, 2, 4), {"stride": 2}),
    ("SOC3d", 4, 4, 3, (2, 2, 2), {"groups": 2, "dilation": 2}),
    # Complex.
    ("SUC1d", 3, 3, 3, 5, {}),
    ("SUC1d", 2, 4, 2, 6, {"stride": 2, **CIRCULAR}),
    ("SUC1d", 4, 2, 3, 5, {"groups": 2}),
    ("SUC2d", 2, 2, 3, (3, 4), {}),
    ("SUC2d", 2, 2, 3, (3, 4), {**CIRCULAR, **TAYLOR}),
    ("SUC2d", 3, 1, 3, (3, 3), {"dilation": 2}),
    ("SUC2d", 1, 4, 1, (4, 4), {"stride": 2}),
    ("SUC3d", 2, 2, 3, (2, 2, 2), {}),
    # Adjoints.
    ("SOCTranspose1d", 4, 2, 3, 3, {"stride": 2}),
    ("SOCTranspose1d", 2, 2, 2, 5, CIRCULAR),
    ("SOCTranspose2d", 6, 1, 3, (2, 3), {"stride": 2}),
    ("SOCTranspose2d", 2, 1, 3, (2, 3), {"stride": 2, **CIRCULAR}),
    ("SOCTranspose2d", 4, 4, 3, (3, 3), {"groups": 2, **TAYLOR}),
    ("SOCTranspose3d", 8, 1, 3, (1, 2, 1), {"stride": 2}),
    ("SOCTranspose3d", 2, 3, (1, 3, 2), (2, 2, 2), {}),
]


def _name(row) -> str:
    layer, c_in, c_out, kernel, size, options = row
    tail = "-".join(f"{k}={v}" for k, v in options.items())
    return f"{layer}-{c_in}to{c_out}-k{kernel}-on{size}-{tail}".replace(" ", "")


@pytest.fixture(params=ROWS, ids=_name)
def row(request):
    return request.param


def _build(row) -> tuple[nn.Module, tuple[int, ...]]:
    name, c_in, c_out, kernel, size, options = row
    torch.manual_seed(0)
    layer = getattr(snn, name)(c_in, c_out, kernel, **options)
    return layer, (c_in, *((size,) if isinstance(size, int) else size))


def _double(layer: nn.Module) -> torch.dtype:
    return torch.complex128 if layer.is_complex else torch.float64


def _in_double(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        # torch calls complex modules new when a whole module is converted to a complex dtype.
        warnings.filterwarnings("ignore", message="Complex modules", category=UserWarning)
        return layer.to(_double(layer)).eval()


def _matrix(layer: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """The linear map of an evaluation layer in double precision, written out."""
    zero = layer(torch.zeros(1, *shape, dtype=_double(layer)))
    with torch.no_grad():
        return dense_matrix(lambda x: layer(x) - zero, shape, dtype=_double(layer)).numpy()


def _exact(layer: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """keep expm(J) pad psi, from the filter alone: the map the layer approximates."""
    steps = (1,) * layer.axes if layer.transposed else layer.stride
    size = tuple(n // s for n, s in zip(shape[1:], steps, strict=True))
    J = dense_jacobian(layer.weight.detach(), size, layer.padding_mode, layer.dilation, layer.groups).numpy()
    E, pixels, groups = scipy.linalg.expm(J), math.prod(size), layer.groups
    E = E.reshape(groups, layer.channels // groups, pixels, groups, layer.channels // groups, pixels)
    E = E[:, : layer.kept_channels // groups, :, :, : layer.read_channels // groups]
    E = E.reshape(layer.kept_channels * pixels, layer.read_channels * pixels)
    if layer.transposed:
        E = E.conj().T
    image = (layer.read_channels // math.prod(layer.stride), *(n * s for n, s in zip(size, layer.stride, strict=True)))
    fold = _fold(image, layer.stride)
    return fold.T @ E if layer.transposed else E @ fold


def _fold(image: tuple[int, ...], stride: tuple[int, ...]) -> np.ndarray:
    """psi as a permutation matrix, entry by entry: channel c and offset o go to channel c prod(s) + o."""
    small = [n // s for n, s in zip(image[1:], stride, strict=True)]
    fold = np.zeros((math.prod(image), math.prod(image)))
    for channel in range(image[0]):
        for pixel in product(*map(range, image[1:])):
            offset = np.ravel_multi_index([p % s for p, s in zip(pixel, stride, strict=True)], stride)
            place = [p // s for p, s in zip(pixel, stride, strict=True)]
            folded = math.prod(stride)
            row = np.ravel_multi_index([channel * folded + offset, *place], [image[0] * folded, *small])
            fold[row, np.ravel_multi_index([channel, *pixel], image)] = 1
    return fold


def test_after_training_the_layer_is_orthogonal_to_the_proven_error(row):
    layer, shape = _build(row)
    layer = _in_double(trained(layer, shape, rate=0.5))
    S, p = _matrix(layer, shape), layer.polynomial()
    values = np.linalg.svd(S, compute_uv=False)
    low, high = layer.gain_bounds()
    rounding = 1e-12
    assert values.max() <= high + rounding
    assert values.min() >= p.gain[0] - rounding
    assert low in (0.0, p.gain[0])
    if low:
        assert S.shape[0] >= S.shape[1]
    if "eval_degree" not in row[-1]:
        assert high <= 1.0
        assert p.truncation_error <= layer.eval_polynomial.tol
    assert np.linalg.norm(S - _exact(layer, shape), 2) <= p.truncation_error + rounding
    gram = S.conj().T @ S if S.shape[0] >= S.shape[1] else S @ S.conj().T
    assert np.linalg.norm(gram - np.eye(len(gram)), 2) <= 2 * p.truncation_error + p.truncation_error**2 + rounding


def test_adjoint_gradient_inverse_and_determinant_are_those_of_the_matrix(row):
    layer, shape = _build(row)
    layer = _in_double(layer)
    S, error = _matrix(layer, shape), 3 * layer.polynomial().truncation_error + 1e-12
    x = torch.randn(2, *shape, dtype=_double(layer), requires_grad=True)
    y = layer(x)
    cotangent = torch.randn_like(y)
    expected = (cotangent.flatten(1) @ torch.from_numpy(S).conj()).view_as(x)
    torch.testing.assert_close(layer.adjoint(cotangent), expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(y, x, cotangent)[0], expected, atol=1e-10, rtol=0)
    if y[0].numel() < x[0].numel():
        with pytest.raises(NotInvertibleError, match="channels"):
            layer.inverse(y)
        assert layer.gain_bounds()[0] == 0.0
    else:
        assert (layer.inverse(y) - x).norm() <= error * x.norm()
    if y[0].numel() == x[0].numel():
        _, log_det = np.linalg.slogdet(S)
        low, high = layer.gain_bounds()
        assert x[0].numel() * math.log(low) - 1e-10 <= log_det <= x[0].numel() * math.log(high) + 1e-10


def test_only_the_free_half_of_the_filter_is_stored(row):
    layer, _ = _build(row)
    n, groups = layer.channels // layer.groups, layer.groups
    stored = sum(p.numel() for name, p in layer.named_parameters() if name != "bias")
    pairs = len(layer.taps.free)
    assert stored == groups * (pairs * n * n + n * (n - 1) // 2 + (n if layer.is_complex else 0))
    if all(k % 2 for k in layer.kernel_size):
        entries = groups * n * n * math.prod(layer.kernel_size)
        diagonal = groups * n
        assert stored == (entries - diagonal) // 2 + (diagonal if layer.is_complex else 0)
