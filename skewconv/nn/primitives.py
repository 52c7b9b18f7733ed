"""What a lowered network is made of, beside torch.nn's own layers: maps between images of fixed sizes, and sums.

Everything that depends on the weights alone was computed when a primitive was made by a layer's ``lower``.
``Normalize``, ``InvertibleDownsample``, ``MaxMin``, ``GroupSort`` and ``Householder`` are primitives as they are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.choices import PaddingMode
from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops.convolution import Geometry, odd_filter, residual_step
from skewconv.ops.convolution_exponential import AUTO, apply_polynomial
from skewconv.ops.permutations import invertible_downsample, invertible_upsample
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.products import bmm, matmul
from skewconv.ops.torch_modes import in_format_of

# One product for everything, one a frequency, or several with the layer's own filter.
Form: TypeAlias = Literal["matrix", "frequencies", "chain"]
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Choice:
    """One form that a layer can be lowered to, which is only built if it is chosen.

    It stores at most ``numbers`` of them; its cost is the multiply-adds of one image, those of matrix products weighted
    by time.
    """

    form: Form
    numbers: int
    cost: float
    build: Callable[[], nn.Module]


class Primitive(nn.Module, ABC):
    """A map between inputs and outputs of fixed shapes, given without the batch axis; the bias is (channels,)."""

    bias: Tensor | None
    weight: Tensor

    def __init__(
        self, *, input_shape: Sequence[int], output_shape: Sequence[int], bias: Tensor | None = None, **tensors: Tensor
    ) -> None:
        super().__init__()
        self.input_shape, self.output_shape = tuple(input_shape), tuple(output_shape)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().clone(memory_format=torch.preserve_format))
        if bias is not None and tuple(bias.shape) != (self.bias_entries,):
            raise ArgumentError(f"a bias of shape {tuple(bias.shape)}, where {self.bias_entries} numbers belong")

    @property
    def bias_entries(self) -> int:
        return self.output_shape[0]

    def forward(self, x: Tensor) -> Tensor:
        batched = x.dim() == len(self.input_shape) + 1
        if tuple(x.shape[-len(self.input_shape) :]) != self.input_shape or not (batched or x.shape == self.input_shape):
            raise ShapeError(
                f"this layer was frozen for inputs of shape (batch, {', '.join(map(str, self.input_shape))}), got "
                f"{tuple(x.shape)}; freeze the model again for the new size"
            )
        y = self.map_batch(x if batched else x[None])
        return in_format_of(x, y if batched else y[0], self)

    def map_batch(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) -> (batch, *output_shape)."""
        y = self.linear(x)
        return y if self.bias is None else y + self.bias.view(-1, *(1,) * (len(self.output_shape) - 1))

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """The map without its bias."""

    def is_injective(self) -> bool:
        """True if the output has at least as many entries as the input, so that a least gain can be above zero."""
        return math.prod(self.output_shape) >= math.prod(self.input_shape)

    def extra_repr(self) -> str:
        return " -> ".join(" x ".join(map(str, shape)) for shape in (self.input_shape, self.output_shape))


class Dense(Primitive):
    """One matrix between all entries: (entries out, entries in)."""

    def __init__(self, *, weight: Tensor, **shapes: Any) -> None:
        super().__init__(weight=weight, **shapes)

    def linear(self, x: Tensor) -> Tensor:
        return matmul(x.flatten(1), self.weight.mT).unflatten(1, self.output_shape)


class Convolution(Primitive):
    """One convolution that keeps the size, after a downsampling by the stride; even kernels are padded to odd."""

    def __init__(
        self, *, weight: Tensor, stride: Sequence[int], padding_mode: PaddingMode = "circular", **shapes: Any
    ) -> None:
        filter_ = odd_filter(weight.detach()).clone(memory_format=torch.contiguous_format)
        super().__init__(weight=filter_, **shapes)
        self.stride, self.padding_mode = tuple(stride), padding_mode
        self.geometry = Geometry.of(tuple(weight.shape[2:]), padding_mode, 1, 1)

    def linear(self, x: Tensor) -> Tensor:
        return self.geometry.convolve(invertible_downsample(x, self.stride) if max(self.stride) > 1 else x, self.weight)


class _Folding(Primitive):
    """A map on images after a downsampling by the stride, or, if it ``upsamples``, before an upsampling."""

    def __init__(self, *, stride: Sequence[int], upsamples: bool, **rest: Any) -> None:
        super().__init__(**rest)
        self.stride, self.upsamples = tuple(stride), upsamples

    @property
    def read_channels(self) -> int:
        """Channels on the side of the stride, after downsampling."""
        return (self.output_shape if self.upsamples else self.input_shape)[0] * math.prod(self.stride)

    @property
    def kept_channels(self) -> int:
        """Channels on the other side."""
        return (self.input_shape if self.upsamples else self.output_shape)[0]

    @property
    def image_size(self) -> tuple[int, ...]:
        """Size of the images between downsampling and upsampling."""
        return (self.input_shape if self.upsamples else self.output_shape)[1:]

    def linear(self, x: Tensor) -> Tensor:
        folds = max(self.stride) > 1
        y = self.between(invertible_downsample(x, self.stride) if folds and not self.upsamples else x)
        return invertible_upsample(y, self.stride) if folds and self.upsamples else y

    @abstractmethod
    def between(self, x: Tensor) -> Tensor:
        """The map between downsampling and upsampling."""


class CircularConvolution(nn.Module):
    """A real Fourier transform, one matrix a frequency, and the transform back."""

    real_weight: Tensor  # (real frequencies * groups, inputs, outputs)
    weight: Tensor  # (pairs of frequencies * groups, 2 inputs, 2 outputs), real and imaginary parts side by side
    # Of :func:`skewconv.ops.fourier.separate_tables`, orthogonal, whose transposes lead back.
    row_table: Tensor
    end_table: Tensor
    inner_table: Tensor
    groups: int

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.row_table, self.end_table, self.inner_table

    def convolve(self, x: Tensor) -> Tensor:
        # Not len(x), which would be a constant of an exported program.
        batch, outputs = x.shape[0], self.groups * self.real_weight.shape[2]
        columns = x.reshape(*x.shape[:2], len(self.end_table), len(self.row_table)).permute(3, 2, 0, 1).flatten(2)
        alone, paired = self.transformed(columns)
        alone, paired = self.moved(alone, self.real_weight, 1, batch), self.moved(paired, self.weight, 2, batch)
        images = self.inverse_transformed(alone, paired).unflatten(2, (batch, outputs))
        return images.permute(2, 3, 1, 0).reshape(batch, outputs, *x.shape[2:])

    def transformed(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Columns (width, height, images) -> (real frequencies, images), (2 pairs, images)."""
        width, height, images = values.shape
        # ``count_of_real_frequencies((width,))``, in words that an exported file has, too: this text is copied there.
        ends = 2 - width % 2
        if width > 1:
            values = matmul(self.row_table, values.flatten(1)).view(width, height, images)
        outer, inner = values.tensor_split([ends])
        outer = bmm(self.end_table.expand(ends, height, height), outer)
        reals = len(self.real_weight) // self.groups // ends
        paired = outer[:, reals:].flatten(0, 1)
        if len(inner):
            inner = inner.reshape(len(inner) // 2, 2 * height, images)
            inner = bmm(self.inner_table.expand(len(inner), -1, -1), inner)
            paired = torch.cat([inner.flatten(0, 1), paired])
        return outer[:, :reals].flatten(0, 1), paired

    def inverse_transformed(self, alone: Tensor, paired: Tensor) -> Tensor:
        """The way back, with any number of images: to columns (width, height, images)."""
        width, height, images = len(self.row_table), len(self.end_table), alone.shape[1]
        ends = 2 - width % 2
        inner, outer = paired.tensor_split([(width - ends) * height])
        reals = len(alone) // ends
        outer = torch.cat([alone.view(ends, reals, images), outer.view(ends, height - reals, images)], 1)
        values = bmm(self.end_table.t().expand(ends, height, height), outer)
        if width > ends:
            inner = inner.view((width - ends) // 2, 2 * height, images)
            inner = bmm(self.inner_table.t().expand(len(inner), -1, -1), inner)
            values = torch.cat([values, inner.view(width - ends, height, images)])
        if width > 1:
            values = matmul(self.row_table.t(), values.flatten(1)).view(width, height, images)
        return values

    def moved(self, waves: Tensor, weight: Tensor, parts: int, batch: int) -> Tensor:
        """One product a frequency: (frequencies * parts, batch * channels), real parts alone or with imaginary ones."""
        inputs, outputs = weight.shape[1] // parts, weight.shape[2] // parts
        split = waves.view(len(waves) // parts, parts, batch, self.groups, inputs)
        rows = split.permute(0, 3, 2, 1, 4).reshape(len(weight), batch, parts * inputs)
        products = bmm(rows, weight).view(len(waves) // parts, self.groups, batch, parts, outputs)
        return products.permute(0, 3, 2, 1, 4).reshape(len(waves), batch * self.groups * outputs)


class Spectral(_Folding, CircularConvolution):
    """A circular convolution by its frequencies.

    Of an image of n pixels, few frequencies are real, and the others are pairs of conjugates, of which one is kept:
    n real numbers in all.
    """

    def __init__(
        self,
        *,
        real_weight: Tensor,
        weight: Tensor,
        row_table: Tensor,
        end_table: Tensor,
        inner_table: Tensor,
        groups: int,
        **rest: Any,
    ) -> None:
        rest |= {"row_table": row_table, "end_table": end_table, "inner_table": inner_table}
        super().__init__(real_weight=real_weight, weight=weight, **rest)
        self.groups = groups

    @classmethod
    def of_matrices(cls, real: Tensor, pairs: Tensor, tables: Sequence[Tensor], **rest: Any) -> "Spectral":
        """From (frequencies * groups, outputs, inputs): at real frequencies, and complex ones at one of each pair."""
        rest |= dict(zip(("row_table", "end_table", "inner_table"), tables, strict=True))
        # (n, 2 in, 2 out), to be multiplied from the left by (real, imaginary) parts.
        re, im = pairs.mT.real, pairs.mT.imag
        weight = torch.cat([torch.cat([re, im], 2), torch.cat([-im, re], 2)], 1)
        return cls(real_weight=real.mT.contiguous(), weight=weight, **rest)

    def between(self, x: Tensor) -> Tensor:
        return self.convolve(x)


class SkewExponential(_Folding):
    """p(J) x by its recurrence for the convolution J with a skew filter; p(J)^H x if it upsamples.

    The weight is the normalised filter, (m, m / groups, *kernel); a file gives p as (series, norm_bound, coefficients,
    truncation_error) and the geometry as (kernel, dilation, groups, padding_mode).
    """

    engine = AUTO

    def __init__(
        self, *, weight: Tensor, polynomial: Polynomial | Sequence[Any], geometry: Geometry | Sequence[Any], **rest: Any
    ) -> None:
        # Channels last in memory, as the layers keep it.
        kept = weight.detach().movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)
        super().__init__(weight=kept, **rest)
        if not isinstance(polynomial, Polynomial):
            series, rho, coefficients, error = polynomial
            polynomial = Polynomial(series, rho, tuple(coefficients), error)
        if not isinstance(geometry, Geometry):
            kernel, dilation, groups, padding_mode = geometry
            geometry = Geometry(tuple(kernel), tuple(dilation), groups, padding_mode)
        self.polynomial, self.geometry = polynomial, geometry

    def between(self, x: Tensor) -> Tensor:
        outputs = self.read_channels if self.upsamples else self.kept_channels
        options: dict[str, Any] = {"out_channels": outputs, "inverse": self.upsamples, "engine": self.engine}
        return apply_polynomial(x, self.weight, self.polynomial, self.geometry, **options)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, degree {self.polynomial.degree}"


class ResidualStep(Primitive):
    """x - 2 W S relu(W^T x + b) after a downsampling, channels filled up with zeros before and cut off after.

    The weight is the filter of W^T, (hidden, channels, k, k), the scale the diagonal of S, (hidden,) or ().
    """

    scale: Tensor

    def __init__(self, *, weight: Tensor, scale: Tensor, stride: int, padding_mode: PaddingMode, **shapes: Any) -> None:
        weight, scale = (t.detach().clone(memory_format=torch.contiguous_format) for t in (weight, scale))
        super().__init__(weight=weight, scale=scale, **shapes)
        self.stride, self.padding_mode = stride, padding_mode

    @property
    def bias_entries(self) -> int:
        return len(self.weight)

    def map_batch(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def linear(self, x: Tensor) -> Tensor:
        z = fitted(x, self.stride, self.weight.shape[1])
        return residual_step(z, self.weight, self.scale, self.bias, self.padding_mode)[:, : self.output_shape[0]]


class ResidualSum(nn.Module):
    """r(a(x)) + s(a(x)), or r(a(x)) + x where there is no s."""

    def __init__(self, activation: nn.Module, residual: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.activation, self.residual, self.shortcut = activation, residual, shortcut

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(x)
        return self.residual(active) + (x if self.shortcut is None else self.shortcut(active))


def fitted(x: Tensor, stride: int, channels: int) -> Tensor:
    """psi, and zeros for the channels that are missing: (n, c, h, w) -> (n, channels, h / stride, w / stride)."""
    z = invertible_downsample(x, (stride, stride)) if stride > 1 else x
    missing = channels - z.shape[1]
    return F.pad(z, (0, 0, 0, 0, 0, missing)) if missing else z


def linear_module(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with this matrix (outputs, inputs) and bias, without gradients."""
    return with_tensors(nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta"), weight, bias)


def with_tensors(module: Module, weight: Tensor, bias: Tensor | None) -> Module:
    """A layer of PyTorch that was built without tensors, with copies of these, without gradients."""
    copies = {"weight": weight.detach().clone(memory_format=torch.contiguous_format)}
    if bias is not None:
        copies["bias"] = bias.detach().clone()
    module.load_state_dict(copies, assign=True)
    return module.requires_grad_(False)
