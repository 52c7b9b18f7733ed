"""Outputs follow the memory format of the input, as in PyTorch; between the layers of a network each has its own.

An engine computes in the format that is fastest for it. A layer called by itself puts its output into the format of its
input, so that ``layer(x).view(n, -1)`` works wherever it works for nn.Conv2d; the copy would be a waste between two
layers that both prefer channels last, where nobody sees it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from skewconv.ops.torch_modes import tracing

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_thread = threading.local()


@contextmanager
def inside_a_network() -> Iterator[None]:
    """Layers that are called inside, by this thread, may leave their outputs in any memory format."""
    before = getattr(_thread, "inside", False)
    _thread.inside = True
    try:
        yield
    finally:
        _thread.inside = before


def following(y: Tensor, x: Tensor) -> Tensor:
    """The output y in the memory format of the input x; as it is inside a network or a trace.

    >>> x = torch.zeros(1, 2, 3, 3)
    >>> following(x.contiguous(memory_format=torch.channels_last), x).is_contiguous()
    True
    """
    if tracing() or getattr(_thread, "inside", False):
        return y
    last = _CHANNELS_LAST.get(x.dim(), torch.contiguous_format)
    keeps_last = y.dim() == x.dim() and not x.is_contiguous() and x.is_contiguous(memory_format=last)
    return y.contiguous(memory_format=last if keeps_last else torch.contiguous_format)
