"""A graph of standard ONNX operators, written node by node."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from skewconv.choices import DEFAULT_OPSET
from skewconv.errors import ArgumentError
from skewconv.extras import optional

#: Every operator used has its present form from the first of these on, or is written in its older form before.
OLDEST_OPSET = 13
# From here on reductions take their axes as an input.
_AXES_ARE_INPUTS = 18

#: the property of a model that holds the hash of its graph
GRAPH_HASH = "graph_sha256"


def graph_hash(model: Any) -> str:
    """SHA-256 of the operators and the tensors of a model, by which a damaged file is known."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


def check_opset(opset: int) -> int:
    """Refuse versions of the operators that are too old for what is written, or newer than the library knows."""
    newest = optional("onnx", "onnx", "export").defs.onnx_opset_version()
    if type(opset) is not int or not OLDEST_OPSET <= opset <= newest:
        reason = "too old" if isinstance(opset, int) and opset < OLDEST_OPSET else "not known here"
        raise ArgumentError(
            f"opset {opset!r} is {reason}: choose from {OLDEST_OPSET} to {newest}; runtimes read every opset up to "
            f"their own, and {DEFAULT_OPSET} is the default"
        )
    return opset


class OnnxGraph:
    """Nodes and stored tensors, in the order in which they were written.

    Args:
        opset: the version of the operators.
        half: whether large tensors are stored in float16, and cast to float32 in the graph.
    """

    def __init__(self, opset: int, *, half: bool = False) -> None:
        self.onnx = optional("onnx", "onnx", "export")
        self.opset, self.half = check_opset(opset), half
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self._names: dict[bytes, str] = {}
        self._count = 0

    def tensor(self, value: Any, name: str = "constant") -> str:
        """The name of a stored tensor; one with the same content is stored once."""
        array = np.ascontiguousarray(value)
        key = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        if key not in self._names:
            label = self._label(name)
            self.stored.append(self.onnx.numpy_helper.from_array(array, label))
            self._names[key] = label
        return self._names[key]

    def weight(self, value: Any, name: str) -> str:
        """The name of a float32 tensor, stored in float16 where that was asked for and loses nothing."""
        array = np.asarray(value, dtype=np.float32)
        with np.errstate(over="ignore"):
            short = array.astype(np.float16)
        if self.half and array.size >= 64 and np.array_equal(short.astype(np.float32), array):
            return self.node("Cast", self.tensor(short, name), to=self.onnx.TensorProto.FLOAT)
        return self.tensor(array, name)

    def integers(self, *values: int) -> str:
        """The name of a list of integers, such as a shape."""
        return self.tensor(np.array(values, dtype=np.int64), "integers")

    def number(self, value: float) -> str:
        """The name of one float32 number."""
        return self.tensor(np.array(value, dtype=np.float32), "number")

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add an operator of the standard domain; the name of its output."""
        name = output or self._label(operator.lower())
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def reshape(self, x: str, *shape: int) -> str:
        """x with another shape, of which one entry may be -1."""
        return self.node("Reshape", x, self.integers(*shape))

    def transpose(self, x: str, *order: int) -> str:
        """x with its axes in another order."""
        return self.node("Transpose", x, perm=list(order))

    def cut(self, x: str, start: int, stop: int, axis: int) -> str:
        """The entries from start to stop of one axis."""
        return self.node("Slice", x, *(self.integers(i) for i in (start, stop, axis)))

    def padded_channels(self, x: str, missing: int) -> str:
        """(n, c, h, w) with so many channels of zeros after the others."""
        return x if missing == 0 else self.node("Pad", x, self.integers(0, 0, 0, 0, 0, missing, 0, 0))

    def folded(self, a: str, b: str, sine: str, cosine: str) -> tuple[str, str]:
        """The plane of (a, b) folded along a line: see :class:`skewconv.export.plain_layers.Householder`."""
        side = self.node("Sub", self.node("Mul", a, sine), self.node("Mul", b, cosine))
        twice = self.node("Mul", self.node("Min", side, self.number(0.0)), self.number(2.0))
        return self.node("Sub", a, self.node("Mul", twice, sine)), self.node("Add", b, self.node("Mul", twice, cosine))

    def reduce(self, operator: str, x: str, axis: int) -> str:
        """A maximum or minimum over one axis, which is lost."""
        if self.opset >= _AXES_ARE_INPUTS:
            return self.node(operator, x, self.integers(axis), keepdims=0)
        return self.node(operator, x, axes=[axis], keepdims=0)

    def model(self, input_shape: Sequence[int], outputs: Sequence[tuple[str, Sequence[Any]]], metadata: Any) -> Any:
        """The finished model, checked: one input ``images`` with a free batch axis.

        Args:
            input_shape: of one image.
            outputs: (name, shape without the batch axis) of each output.
            metadata: strings by name.
        """
        helper, floats = self.onnx.helper, self.onnx.TensorProto.FLOAT
        images = helper.make_tensor_value_info("images", floats, ["batch", *input_shape])
        results = [helper.make_tensor_value_info(name, floats, ["batch", *shape]) for name, shape in outputs]
        graph = helper.make_graph(self.nodes, "skewconv", [images], results, self.stored)
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="skewconv")
        # The oldest format that may hold these operators, so that older runtimes read it.
        model.ir_version = helper.find_min_ir_version_for(opsets)
        helper.set_model_props(model, {**metadata, GRAPH_HASH: graph_hash(model)})
        self.onnx.checker.check_model(model, full_check=True)
        return model

    def _label(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"
