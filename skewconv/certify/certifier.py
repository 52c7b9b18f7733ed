"""Radii: how far an image can move before the prediction may change, proven.

Every proof of a rounding error rests on these sentences about the machine's arithmetic, and on no others:

- float64 numbers are those of IEEE 754, denormals included (nothing is flushed to zero);
- a matrix product or convolution in float64 computes each output as one sum of products, in any order, with or without
  fused multiply-add: no Strassen, no Winograd, no transforms, no TF32, no float64 emulated by shorter numbers;
- a Cholesky factorization in float64, of one matrix or of a stack, on the threads in use, ends early where a pivot is
  not positive, and otherwise has the backward error of sums of products;
- maxima, sorting, copies and powers of two round nothing.

No proof relies on LU, QR, singular or eigenvalue decompositions: what these find is verified by products.
"""

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.certify.programs import chain_program, program_of
from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError, SkewconvError, UnboundedModuleError
from skewconv.nn.bounds import ZERO, AffineBound
from skewconv.nn.lowering import chain, lower
from skewconv.nn.module_tools import first_tensor, float64_copy, unwrapped
from skewconv.ops.products import by_onednn, onednn_product
from skewconv.ops.torch_modes import without_autocast
from skewconv.rigor import factor_down, gamma, vector_norm_up

# The range of a pixel: radii are in its unit.
PIXELS = (0.0, 1.0)
# sqrt(2), rounded up.
_ROOT_TWO = math.nextafter(math.sqrt(2.0), 2.0)
# A quotient of numbers with a few roundings each, and the conversion to a decimal and back.
_QUOTIENT_DOWN = factor_down(128)
# Two evaluations in float64 agree far better than this, and different functions hardly ever so well.
_TOLERANCE = 1e-6


class Verdicts(NamedTuple):
    """What is proven of a batch: predictions (n,), margins (n,), radii (n,) and logits (n, classes) in float64."""

    predictions: Tensor
    margins: Tensor
    radii: Tensor
    logits: Tensor


class Certifier:
    """A model made ready for certification: a float64 copy in eval mode, and everything proven of it.

    >>> from skewconv.models import LipConvnet
    >>> certifier = Certifier(LipConvnet(5, in_channels=1, input_size=8, width=4), (1, 8, 8))
    >>> 3.9 < certifier.lipschitz < 4.0, certifier.rounding.slope < 1e-9
    (True, True)

    With e(n) = A n + B the bound on the rounding error of the logits of an input of norm n, and K_i a Lipschitz
    constant of f_t - f_i, the radius is min_i (m_i - 2 sqrt(2) e(||x||)) / (K_i + sqrt(2) A): the rounding is
    subtracted once for the image and once for the point it may move to. No radius reaches beyond inputs for which
    nothing overflows.

    Args:
        model: made of layers with a known bound and a known rounding error; it is copied, and left as it is.
        input_shape: of one image.
        device: where to compute; the model's own by default, the CPU where that has no float64.
        input_range: of the values of an image, which gives radii their unit; None for models of other inputs.
    """

    def __init__(
        self,
        model: nn.Module,
        input_shape: Sequence[int],
        device: torch.device | str | None = None,
        *,
        input_range: tuple[float, float] | None = PIXELS,
    ) -> None:
        self.input_range, self.input_shape = input_range, tuple(input_shape)
        chosen = torch.device(first_tensor(model).device if device is None else device)
        self.device = torch.device("cpu") if chosen.type == "mps" else chosen
        exact = float64_copy(model, self.device)
        #: what certificates of test images measured, see :func:`kept_results`
        self.kept = kept_results(model)
        with torch.no_grad(), _plain_arithmetic(self.device):
            check_arithmetic(self.device)
            #: the primitives that the model is lowered to, named, in order
            self.links = chain(lower(exact, self.input_shape))
            *body, (name, last) = self.links
            before = chain_program(body, self.input_shape)
            head = program_of(last, before.shape, name)
            self._program = before.then(head)
            if len(self._program.shape) != 1:
                raise ShapeError(f"the model must give logits (batch, classes), got one of shape {self._program.shape}")
            bounds = self._program.bounds
            self.lipschitz, self.rounding = bounds.lipschitz, bounds.error
            #: the largest norm of an input for which nothing overflows
            self.reach = bounds.max_input_norm
            # A bound on rounding that is NaN or infinite, from a bias, say, certifies nothing by itself.
            if not math.isfinite(self.lipschitz):
                raise NotFiniteError(f"the Lipschitz bound of {type(model).__name__} is not finite; are its weights?")
            refuse_another_function(exact, self._program.run, self.input_shape, self.device)
            self.classes = self._program.shape[0]
            self.pair_bounds = self._pairs(before.bounds.lipschitz, head.matrix)

    def _pairs(self, before: float, matrix: Tensor | None) -> Tensor:
        """K (classes, classes): the least proven Lipschitz constant of each difference of two logits."""
        shape, bound = (self.classes, self.classes), self.lipschitz * _ROOT_TWO
        whole = torch.full(shape, bound, device=self.device, dtype=torch.float64)
        if matrix is None:
            return whole * (1 / _QUOTIENT_DOWN)
        # Each entry is a rounded difference. Halves of rows have differences that do not overflow.
        rows = torch.stack([2 * vector_norm_up(matrix / 2 - row / 2, safety=2) for row in matrix])
        pairs = torch.minimum(rows * before, whole) * (1 / _QUOTIENT_DOWN)
        # A product that underflows is lifted to the least float64: only equal rows have the bound zero.
        return torch.where((rows > 0) & (pairs < 2.0**-1000), torch.nextafter(pairs, pairs.new_tensor(1.0)), pairs)

    def logits(self, images: Tensor) -> Tensor:
        """(n, *input_shape) -> (n, classes), float64, each row within ``rounding.at(||x||)`` of the exact logits."""
        x = self._checked(images)
        with torch.no_grad(), _plain_arithmetic(self.device):
            return self._program.run(x)

    def __call__(self, images: Tensor, labels: Tensor) -> Verdicts:
        """Predictions, margins f_t - max f_i for the labels t, and radii: 0 where wrong, tied or not finite."""
        x = self._checked(images)
        if labels.shape != x.shape[:1] or labels.is_floating_point():
            raise ShapeError(f"labels must be integers of shape ({len(x)},), got {labels.dtype} {tuple(labels.shape)}")
        t = labels.to(self.device, torch.int64)
        if len(t) and (int(t.min()) < 0 or int(t.max()) >= self.classes):
            raise ArgumentError(f"labels must be from 0 to {self.classes - 1}, got {int(t.min())} to {int(t.max())}")
        logits = self.logits(x)
        rivals = self.radii_by_rival(x, logits, t)
        return Verdicts(logits.argmax(1), self.gaps(logits, t).amin(1), rivals.amin(1), logits)

    def gaps(self, logits: Tensor, labels: Tensor) -> Tensor:
        """f_t - f_i for the labels t and every class i, infinite for t itself: (n, classes), (n,) -> (n, classes)."""
        own = torch.arange(self.classes, device=logits.device) == labels[:, None]
        return (logits.gather(1, labels[:, None]) - logits).masked_fill(own, math.inf)

    def radii_by_rival(self, images: Tensor, logits: Tensor, labels: Tensor, slack: AffineBound = ZERO) -> Tensor:
        """(n, classes): within which radius each class provably does not overtake the label, infinite for itself.

        A row is 0 where the label (n,) is not the prediction, is tied, or a logit (n, classes) is not finite. With a
        slack, how far another program's logits may be as a function of the norm of the image, the radii are that
        program's.
        """
        x, gaps = images.to(logits), self.gaps(logits, labels)
        low, high = self.input_range or (-math.inf, math.inf)
        # NaN is not refused: it gets the radius zero.
        if bool(((x < low) | (x > high)).any()):
            raise ArgumentError(
                f"images must lie in [{low:g}, {high:g}], got values from {float(x.min()):g} to {float(x.max()):g}: "
                "divide pixels from 0 to 255 by 255, since radii are in the units of the images; for a model of other "
                "inputs, pass input_range=None"
            )
        with _plain_arithmetic(self.device):
            norms = vector_norm_up(x.flatten(1))
        # Rounding at the image and at the point it may move to; another program's slack at that point only.
        at_image, at_point = self.rounding, self.rounding.plus(slack)
        lost = _ROOT_TWO * (at_image.slope * norms + at_image.constant) / _QUOTIENT_DOWN
        lost = lost + _ROOT_TWO * (at_point.slope * norms + at_point.constant) / _QUOTIENT_DOWN
        numerators = gaps * _QUOTIENT_DOWN - lost[:, None]
        radii = numerators / (self.pair_bounds[labels] + _ROOT_TWO * at_point.slope) * _QUOTIENT_DOWN
        others = torch.arange(self.classes, device=logits.device) != labels[:, None]
        radii = torch.where(others, torch.minimum(radii, ((self.reach - norms) * _QUOTIENT_DOWN)[:, None]), radii)
        sound = torch.isfinite(logits).all(1) & (gaps.amin(1) > 0) & (radii.amin(1) > 0)
        return torch.where(sound[:, None], radii, 0.0)

    def _checked(self, images: Tensor) -> Tensor:
        if not images.is_floating_point():
            raise DtypeError(f"images must be floating, in [0, 1], got {images.dtype}; divide uint8 images by 255")
        if tuple(images.shape[1:]) != self.input_shape:
            raise ShapeError(f"images must have shape (n, {self.input_shape}), got {tuple(images.shape)}")
        # A copy, because a layer may work in place.
        return images.detach().to(self.device, torch.float64, copy=True)


def radii(
    model: nn.Module, images: Tensor, labels: Tensor, *, input_range: tuple[float, float] | None = PIXELS
) -> Tensor:
    """l2 radii, in the units of the images, within which no point is classified otherwise: proven, rounding included.

    >>> from skewconv.models import LipConvnet
    >>> model = LipConvnet(5, in_channels=1, input_size=8, width=4)
    >>> images = torch.rand(4, 1, 8, 8)
    >>> radii(model, images, torch.zeros(4, dtype=torch.int64)).shape
    torch.Size([4])

    The function certified is the model in eval mode, in float64, with the weights as stored: neither its exact value
    nor its evaluation by :meth:`Certifier.logits` changes class inside the radius. In another precision it is another
    function, whose logits differ by about 1e-6 of the norm of the input in float32, and by a hundredth in bfloat16.

    Args:
        model: images to logits, its first layer normalising them. It is left as it is.
        images: (n, *shape), floating, in [0, 1].
        labels: (n,), integers.
        input_range: see :class:`Certifier`.

    Returns:
        (n,) float64 on the model's device; 0 where the prediction is wrong, tied, or not finite.
    """
    return Certifier(model, tuple(images.shape[1:]), input_range=input_range)(images, labels).radii


def margin_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The right logit less the largest other one: (n, classes), (n,) -> (n,), negative where the answer is wrong."""
    right = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -math.inf).amax(1)
    return right[:, 0] - others


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of every parameter and buffer: name, dtype, shape and bits, in the order of the names.

    >>> layer = nn.Linear(2, 2)
    >>> before = weights_hash(layer)
    >>> layer.weight.data[0, 0] += 1
    >>> weights_hash(layer) == before
    False
    """
    return tensors_hash(sorted(unwrapped(model).state_dict().items()))


def tensors_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
        digest.update(f"{name}:".encode() if name else b"")
        digest.update(f"{plain.dtype}{tuple(plain.shape)};".encode())
        # Every dtype, also those NumPy does not know, as bytes.
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def kept_results(model: nn.Module) -> Mapping[str, Any]:
    """Results of the certificates beside the run that a model was loaded from, if they are of its weights; else none.

    What they measured is taken from here, radii and bounds never are.
    """
    kept = vars(unwrapped(model)).get("certified_results")
    if not isinstance(kept, Mapping) or kept.get("function") is not None:
        return {}
    return kept if kept.get("weights_sha256") == weights_hash(model) else {}


@contextmanager
def _plain_arithmetic(device: torch.device) -> Iterator[None]:
    """Sums of products in float64: cuDNN may choose transforms, autocast another precision, a user another device."""
    with torch.backends.cudnn.flags(enabled=False), without_autocast(device), torch.device("cpu"):
        yield


def refuse_another_function(
    model: nn.Module, run: Callable[[Tensor], Tensor], shape: tuple[int, ...], device: torch.device
) -> None:
    """Compare the float64 model, one input at a time, with its program, both at once.

    A program is derived from the types of the layers. A class whose forward was changed, or a layer that looks across
    the batch, computes something else, and nothing proven of the program is then true of the model.
    """
    generator = torch.Generator().manual_seed(0)
    draws = [draw(1, *shape, generator=generator, dtype=torch.float64) for draw in (torch.rand, torch.randn)]
    x = torch.cat(draws).to(device)
    with torch.no_grad():
        alone = torch.cat([model(row[None].clone()) for row in x])
        together = run(x)
    size = 1 + float(torch.nan_to_num(alone).abs().max()) if alone.numel() else 1.0
    if alone.shape != together.shape or not torch.allclose(
        alone, together.to(alone), rtol=0.0, atol=_TOLERANCE * size, equal_nan=True
    ):
        raise UnboundedModuleError(
            f"no certificate can be given for {type(model).__name__}: it computes something else than its layers do, "
            "one after the other and image by image; was a forward replaced, or does a layer mix the images of a batch?"
        )


_SIZE, _CHANNELS, _BITS = 48, 12, 26
# Of stacks: libraries divide the work otherwise from some size on.
_FACTOR_SIZES = (48, 160, 384)


class UnsoundArithmeticError(SkewconvError):
    """A machine whose float64 arithmetic is not what certificates assume."""


def check_arithmetic(device: torch.device | str = "cpu") -> None:
    """Refuse a device that breaks an assumption on a product, a convolution, a Cholesky factor or a denormal.

    A sum of n products errs by at most gamma_n sum |a b|, output by output. Where rows and columns differ by factors
    of 2^300, or terms of a sum cancel in scale, algorithms other than such sums miss that by far.
    """
    if torch.is_autocast_enabled(torch.device(device).type):
        raise UnsoundArithmeticError("autocast is on, which lowers the precision of products; certify outside of it")
    # Asked each time, since any thread may switch it.
    tiny = torch.full((2,), 2.0**-1060, dtype=torch.float64, device=device)
    flushes = not bool((tiny * 0.5 > 0).all())
    reason = _found(str(torch.device(device)), flushes, torch.get_num_threads())
    if reason:
        raise UnsoundArithmeticError(
            f"float64 on {device} is not what certificates assume: {reason}; switch that off, or certify on the CPU"
        )


@lru_cache(maxsize=16)
def _found(device: str, flushes: bool, threads: int) -> str:
    if flushes:
        return "denormals are flushed to zero (torch.set_flush_denormal)"
    if _worst_product(device) > 1:
        return "matrix products err by more than a sum of products can (TF32, Strassen or emulation)"
    if _worst_convolution(device) > 1:
        return "convolutions err by more than a sum of products can (Winograd or transforms)"
    # Factors are made on the CPU, whatever device the network is on.
    if not all(_factors_rightly(n, dtype) for n in _FACTOR_SIZES for dtype in (torch.float64, torch.complex128)):
        return f"Cholesky factors of stacks on {threads} threads are wrong (torch.set_num_threads(1) may help)"
    return ""


def multiplies_in_float32(device: torch.device | str) -> bool:
    """True if a float32 product, as the device is set now, is a sum of float32 products, not of TF32 or bfloat16."""
    generator, size = np.random.default_rng(2), 128
    left, right = (generator.integers(-(2**20), 2**20, (size, size)).astype(np.float32) for _ in range(2))
    with without_autocast(torch.device(device)):
        factors = torch.from_numpy(left).to(device), torch.from_numpy(right).to(device)
        ways = [operator.matmul, onednn_product] if by_onednn(*factors) else [operator.matmul]
        found = np.stack([product(*factors).cpu().double().numpy() for product in ways])
    a, b = left.astype(np.float64), right.astype(np.float64)  # whose sums of products are below 2^53
    return bool((np.abs(found - a @ b) <= 2.0**-24 * (size + 2) * 1.01 * (np.abs(a) @ np.abs(b))).all())


def _integers(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers whose sums of products have more bits than a float64, as Python's integers."""
    return generator.integers(-(2**_BITS), 2**_BITS, shape).astype(object)


def _powers(generator: np.random.Generator, count: int) -> np.ndarray:
    return 2.0 ** generator.integers(-150, 150, count).astype(float)


def _worst_product(device: str) -> float:
    """max |computed - exact| / (gamma_n |A| |B|) for A = D1 M D, B = D^-1 N D2 with powers of two D."""
    generator = np.random.default_rng(0)
    left, right = _integers(generator, _SIZE, _SIZE), _integers(generator, _SIZE, _SIZE)
    above, inner, beside = (_powers(generator, _SIZE) for _ in range(3))
    a = torch.from_numpy(above[:, None] * left.astype(float) * inner).to(device)
    b = torch.from_numpy(right.astype(float) / inner[:, None] * beside).to(device)
    return _worst_ratio((a @ b).cpu().numpy() / above[:, None] / beside, left, right)


def _worst_convolution(device: str) -> float:
    """The same for a 3 x 3 convolution of images whose rows fall off by 2^15 each, channels scaled as above."""
    generator = np.random.default_rng(1)
    x, w = _integers(generator, 1, _CHANNELS, 10, 10), _integers(generator, _CHANNELS, _CHANNELS, 3, 3)
    x = x * np.array([2 ** (15 * row) for row in range(10)], dtype=object)[:, None]
    inner = _powers(generator, _CHANNELS)[:, None, None]
    images, filters = torch.from_numpy(x.astype(float) * inner), torch.from_numpy(w.astype(float) / inner)
    computed = F.conv2d(images.to(device), filters.to(device)).cpu().numpy().reshape(_CHANNELS, 64)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[0]  # (c, h, w, 3, 3)
    return _worst_ratio(computed.T, windows.transpose(1, 2, 0, 3, 4).reshape(64, -1), w.reshape(_CHANNELS, -1).T)


def _factors_rightly(n: int, dtype: torch.dtype) -> bool:
    """True if Cholesky factors L L^H, and refuses the same with a last pivot of -1, in one stack of whole numbers."""
    generator = torch.Generator().manual_seed(n)
    signs = torch.randint(-1, 2, (2, n, n), generator=generator).to(dtype)
    lower = (signs[0] + (1j * signs[1] if dtype.is_complex else 0)).tril(-1)
    lower.diagonal().fill_(32.0)
    exact = lower @ lower.mH
    spoiled = exact.clone()
    spoiled[-1, -1] -= 32.0**2 + 1
    factors, info = torch.linalg.cholesky_ex(torch.stack([exact, spoiled, exact]))
    scale = exact.diagonal().real.sqrt()
    errors = (factors[::2] @ factors[::2].mH - exact).abs() / (scale[:, None] * scale)
    return info.tolist() == [0, n, 0] and float(errors.max()) <= 2 * gamma(2 * (n + 4), is_complex=dtype.is_complex)


def _worst_ratio(computed: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    """max |computed - A B| / (gamma_n |A| |B|) for matrices of whole numbers."""
    if not np.isfinite(computed).all():
        return math.inf
    allowed = Fraction(gamma(len(right) + 2))
    rows = zip(computed.flat, (left @ right).flat, (np.abs(left) @ np.abs(right)).flat, strict=True)
    return float(max(abs(Fraction(float(c)) - e) / (allowed * s) for c, e, s in rows))
