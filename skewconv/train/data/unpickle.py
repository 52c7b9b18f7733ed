"""Reading a CIFAR batch without trusting it: a pickle that can make plain values and byte arrays, and call nothing."""

import io
import math
import pickle
from typing import Any

import numpy as np

from skewconv.train.data.errors import ArchiveError


def load_batch(data: bytes, name: str) -> dict[str, Any]:
    """The dictionary of a CIFAR batch: lists, integers and bytes, and (rows, columns) uint8 arrays.

    Pickles call functions by name. Here the three names that rebuild a numpy array lead to stand-ins that only take
    note of their arguments; every other name is refused, and numpy itself is never called with what the file says.

    Args:
        data: the bytes of the file.
        name: what to call it in errors.
    """

    # Made afresh for each file: a pickle can set attributes on what it finds, and must not reach the next file.
    class Array:
        state: Any = None

        def __setstate__(self, state: Any) -> None:
            self.state = state

    class DType:
        def __init__(self, *arguments: Any) -> None:
            self.code = arguments[0] if arguments else None

        def __setstate__(self, state: Any) -> None:
            pass

    ndarray = object()

    def reconstruct(kind: Any, *_: Any) -> Array:
        if kind is not ndarray:
            raise ArchiveError(f"{name}: rebuilds something that is not an array: the file is hostile")
        return Array()

    known = {
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): ndarray,
        ("numpy", "dtype"): DType,
    }

    # The Python unpickler, not the C one: there, one opcode with a large memo index allocates gigabytes.
    class Unpickler(pickle._Unpickler):
        def find_class(self, module: str, attribute: str) -> Any:
            if (module, attribute) not in known:
                asked = f"{module}.{attribute}"[:80]
                raise ArchiveError(f"{name}: the pickle asks for {asked!r}: only arrays of bytes are allowed")
            return known[module, attribute]

        def get_extension(self, code: int) -> Any:
            raise ArchiveError(f"{name}: the pickle asks for the extension {code}: only arrays of bytes are allowed")

    try:
        content = Unpickler(io.BytesIO(data), encoding="bytes").load()
    except ArchiveError:
        raise
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise ArchiveError(
            f"{name}: damaged, or no CIFAR batch ({type(error).__name__}: {str(error)[:80]!r})"
        ) from error
    if type(content) is not dict:
        raise ArchiveError(f"{name}: holds a {type(content).__name__}: a dictionary is expected")

    batch: dict[str, Any] = {}
    for key, value in content.items():
        text = key.decode("latin-1") if type(key) is bytes else key
        if type(text) is not str:
            raise ArchiveError(f"{name}: a key is a {type(text).__name__}: strings are expected")
        if type(value) is Array:
            code = value.state[2].code if _is_array_state(value.state, DType) else None
            batch[text] = _array(value.state, code, f"{name}, {text}")
        else:
            batch[text] = value
    return batch


def _is_array_state(state: Any, dtype: type) -> bool:
    return type(state) is tuple and len(state) == 5 and type(state[2]) is dtype


def _array(state: Any, code: Any, what: str) -> Any:
    """(version, shape, dtype, is Fortran order, bytes), as numpy pickles an array, to a (rows, columns) array."""
    if code not in (b"u1", "u1"):
        raise ArchiveError(f"{what}: an array of another kind than uint8: only bytes are allowed")
    _, shape, _, fortran, raw = state
    if type(shape) is not tuple or len(shape) != 2 or not all(type(size) is int and size >= 0 for size in shape):
        raise ArchiveError(f"{what}: not an array of rows and columns")
    if type(raw) is not bytes or len(raw) != math.prod(shape):
        raise ArchiveError(f"{what}: the bytes do not fill the shape {shape}")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran is True else "C")
