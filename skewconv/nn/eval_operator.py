"""The operator of evaluation mode: proven from the values of parameters, and kept while these stay what they are.

A compiler, an exporter or a function transform looks at a layer without the values of its parameters, and a proof is
about values. So they never see the proof:

============================================  =====================================================================
who looks on                                  what they get
============================================  =====================================================================
nobody, ``torch.func.grad`` and its kin       the operator from the cache, with its derivative where one is asked for
``torch.compile``, ``torch.func.vmap`` over   ``skewconv::eval_operator`` of :mod:`skewconv.nn.opaque_operator`, which
stacked parameters                            they do not look into
``torch.jit.trace``                           the operator as a constant: a trace holds all that it needs
``torch.export``, and so ``torch.onnx``       a refusal that points to ``skewconv.freeze``
============================================  =====================================================================
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from skewconv.nn import opaque_operator
from skewconv.nn._cache import EvalCache
from skewconv.ops.torch_modes import (
    batched,
    jit_tracing,
    outside_traces,
    outside_transforms,
    refuse_export,
    refuse_gradients_of_stacks,
    unwrapped,
)

# The image size (h, w) that an operator belongs to; () where one serves all sizes.
Size: TypeAlias = tuple[int, ...]


class EvalOperator(nn.Module):
    """A layer that builds an operator (a filter, a matrix, a scale) from its parameters, and proves something of it."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: EvalCache[Any] = EvalCache()
        self._number = opaque_operator.enlist(self)

    @abstractmethod
    def _sources(self) -> list[Tensor]:
        """The parameters that the operator is built from."""

    @abstractmethod
    def _prove(self, sources: Sequence[Tensor], size: Size) -> Any:
        """What is proven, as a tuple whose first entry is the operator as stored."""

    @abstractmethod
    def _with_derivative(self, sources: Sequence[Tensor], proven: Any, size: Size) -> Tensor:
        """The operator of these proven values as a differentiable function of the sources."""

    @abstractmethod
    def _operator_form(self, size: Size) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and the dtype of the operator."""

    @abstractmethod
    def _definition(self) -> str:
        """All that the operator depends on beside its sources, in words: equal words, equal functions."""

    def _proven(self, size: Size = ()) -> Any:
        return self._proven_from(self._sources(), size)

    def _proven_from(self, sources: Sequence[Tensor], size: Size) -> Any:
        values = [unwrapped(s) for s in sources]
        with outside_transforms():
            return self._cache.get(self, values, size, lambda: self._prove(values, size))

    def _operator_in_eval(self, size: Size = ()) -> Tensor:
        sources = self._sources()
        name, height, width = type(self).__name__, *(size or (0, 0))
        if torch.compiler.is_compiling():
            refuse_export(name)
        elif any(batched(s) for s in sources):
            refuse_gradients_of_stacks(name, sources)
        elif jit_tracing():
            refuse_export(name)
            with outside_traces():
                return self._proven_from(sources, tuple(map(int, size)))[0].detach()
        else:
            return self.operator_from(sources, size)
        made: Tensor = opaque_operator.eval_operator(sources, height, width, self._number, self._definition())
        return made

    def operator_from(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        """The operator that these sources make, with its derivative where one is asked for."""
        proven = self._proven_from(sources, size)
        if torch.is_grad_enabled() and any(s.requires_grad for s in sources):
            return self._with_derivative(sources, proven, size)
        operator: Tensor = proven[0]
        return operator

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._number = opaque_operator.enlist(self)
