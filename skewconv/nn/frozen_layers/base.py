"""What frozen layers share: everything that depends on the weights alone was computed when they were made."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn._cache import fingerprint
from skewconv.nn.memory_format import following
from skewconv.nn.protocol import Float64Program, Growth, NoProgramError, Shape, proven_program


class FrozenLayer(nn.Module, ABC):
    """A map between images of fixed sizes, with a proven (min, max) gain on record.

    Args:
        input_shape: the shape of one input, without the batch axis.
        output_shape: of one output.
        gain: proven bounds of ||f(x) - f(y)|| / ||x - y||.
        bias: (channels,) or None.
    """

    bias: Tensor | None

    def __init__(
        self,
        input_shape: tuple[int, ...],
        output_shape: tuple[int, ...],
        gain: tuple[float, float],
        bias: Tensor | None,
    ) -> None:
        super().__init__()
        self.input_shape, self.output_shape = tuple(input_shape), tuple(output_shape)
        self.gain = (float(gain[0]), float(gain[1]))
        self._sealed: tuple[Hashable, ...] = ()
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        batched = x.dim() == len(self.input_shape) + 1
        if tuple(x.shape[-len(self.input_shape) :]) != self.input_shape or not (batched or x.shape == self.input_shape):
            raise ShapeError(
                f"this layer was frozen for inputs of shape (batch, {', '.join(map(str, self.input_shape))}), got "
                f"{tuple(x.shape)}; freeze the model again for the new size"
            )
        y = self.map_batch(x if batched else x[None])
        return following(y if batched else y[0], x)

    @abstractmethod
    def map_batch(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) -> (batch, *output_shape)."""

    @abstractmethod
    def proven_gain(self) -> tuple[float, float]:
        """(min, max) of the gain, proven anew from the tensors as they are now."""

    def seal(self) -> None:
        """Remember the content that the gain is proven for."""
        self._sealed = self._content()

    def _content(self) -> tuple[Hashable, ...]:
        return (*(part[:3] for part in fingerprint(*self.buffers())), repr(self.settings()))

    def gain_bounds(self) -> tuple[float, float]:
        """Proven (min, max) of the gain; refused if the tensors have changed since it was proven."""
        if self._sealed and self._sealed != self._content():
            raise ArgumentError(
                f"tensors or settings of this {type(self).__name__} were changed after its gain was proven; "
                "change or convert the original and freeze it again"
            )
        return self.gain

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """The largest gain."""
        return self.gain_bounds()[1]

    def of_stated_shapes(self, program: Float64Program, input_shape: Shape) -> Float64Program:
        """The program, if it maps between the shapes that the layer states: its gain may be proven for those alone."""
        if (tuple(input_shape), program.shape) != (self.input_shape, self.output_shape):
            stated, found = f"{self.input_shape} -> {self.output_shape}", f"{tuple(input_shape)} -> {program.shape}"
            raise NoProgramError(self, f"it states shapes {stated}, and maps {found}")
        return program

    def settings(self) -> dict[str, Any]:
        """What the constructor needs besides the tensors, as JSON values."""
        return {"input_shape": self.input_shape, "output_shape": self.output_shape, "gain": self.gain}

    @classmethod
    def from_settings(
        cls, settings: dict[str, Any], tensors: Mapping[str, Tensor], children: Mapping[str, nn.Module]
    ) -> "FrozenLayer":
        """The layer again from its settings and tensors; what a file says of its gain is not believed."""
        arguments: dict[str, Any] = {**settings, **tensors}
        layer = cls(**arguments)
        layer.prove()
        return layer

    def prove(self) -> None:
        """Prove the gain anew, for the shapes that the layer states, and refuse one that does not map between them."""
        like = next(self.buffers())
        try:
            with torch.no_grad():
                made = self.map_batch(like.new_zeros(1, *self.input_shape))
        except RuntimeError as error:
            raise ArgumentError(f"a {type(self).__name__} whose tensors do not fit each other ({error})") from error
        if tuple(made.shape[1:]) != self.output_shape:
            stated, found = self.output_shape, tuple(made.shape[1:])
            raise ArgumentError(f"a {type(self).__name__} states outputs of shape {stated}, and makes {found}")
        self.gain = self.proven_gain()

    def with_weight(self, weight: Tensor) -> "FrozenLayer":
        """The layer with other numbers in the place of its weight, rounded ones for example, and its gain for those."""
        tensors = {**dict(self.named_buffers(recurse=False)), "weight": weight}
        return self.from_settings(self.settings(), tensors, {})

    def extra_repr(self) -> str:
        shapes = (" x ".join(map(str, s)) for s in (self.input_shape, self.output_shape))
        return "{} -> {}, gain in [{:.7f}, {:.7f}]".format(*shapes, *self.gain)


class FrozenLinearMap(FrozenLayer):
    """A linear map S and a bias; its gain is that of ||S x|| / ||x||."""

    @property
    def bias_entries(self) -> int:
        """How many numbers the bias has."""
        return self.output_shape[0]

    def map_batch(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y if self.bias is None else y + self.bias.view(-1, *(1,) * (len(self.output_shape) - 1))

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) -> (batch, *output_shape), without bias."""

    @abstractmethod
    def rounding_error(self) -> Growth:
        """A proven bound on what :meth:`map_batch` errs by in float64."""

    def stored_program(self, input_shape: Shape) -> Float64Program:
        """The map as it is stored, with a bound proven for its tensors as they are now: what a certificate runs."""
        if any(tensor.is_complex() for tensor in self.buffers()):
            raise NoProgramError(self, "the rounding error of complex layers is not known")
        device, bound = next(self.buffers()).device, self.proven_gain()[1]
        error, buffers = self.rounding_error(), self.buffers()
        return self.of_stated_shapes(
            proven_program(self.map_batch, input_shape, bound, error, device, buffers), input_shape
        )

    def is_injective(self) -> bool:
        """Whether the output has at least as many entries as the input, so that a smallest gain can be above zero."""
        return math.prod(self.output_shape) >= math.prod(self.input_shape)
