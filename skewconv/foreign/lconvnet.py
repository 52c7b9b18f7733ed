"""BCOP layers of LConvNet (ColinQiyangLi/LConvNet), from the entries of their state dicts.

param_matrices (2 k - 1, m, m), bias (c_out), mask (2 k - 2, 1, m), with m = max(c_in, c_out). Their strided layers are
a `shuffle` of the pixels and such a layer, called `conv`, of the folded channels.
"""

from skewconv.foreign.block_convolutions import bcop_from_matrices
from skewconv.foreign.state import ForeignWeightsError, State, entry, names_of, under
from skewconv.nn import BCOP2d

_MATRICES = "param_matrices"


def bcop_from_lconvnet(
    state: State,
    name: str = "",
    *,
    in_channels: int | None = None,
    out_channels: int | None = None,
    stride: int = 1,
    shifted: bool = False,
) -> BCOP2d:
    """Their BCOP layer as a BCOP2d, which has the same filter, its matrices iterated until they are orthogonal.

    >>> import torch
    >>> state = {"conv1.conv.param_matrices": torch.randn(5, 8, 8), "conv1.conv.bias": torch.zeros(8)}
    >>> bcop_from_lconvnet(state, "conv1.conv", in_channels=2, stride=2)
    BCOP2d(2, 8, kernel_size=3, stride=2, bias=True)

    Args:
        state: a state dict, of the layer or of a network.
        name: of the layer in the network, such as "conv1.conv".
        in_channels: of the new layer, before the stride folds them; m / stride^2 by default. Where more channels come
            out than go in, the entries do not tell.
        out_channels: the length of the bias by default, or m where there is no bias.
        stride: of the LipschitzConv2d around the layer.
        shifted: take a kernel of even size, although the output is then moved: ours at (i, j) is theirs at
            (i + 1, j + 1), around the border. They pad one pixel more in front, `padding="same"` one more behind.

    Raises:
        ForeignWeightsError: the entries are none of theirs, contradict the arguments, or have a kernel of even size.
    """
    layer = under(state, f"{name}.") if name else dict(state)
    if _MATRICES not in layer:
        places = [key.removesuffix(f".{_MATRICES}") for key in state if key.endswith(f".{_MATRICES}")]
        found = f"there are {', '.join(places)}" if places else f"the entries are {names_of(state)}"
        raise ForeignWeightsError(f"no BCOP layer of LConvNet, with {_MATRICES!r}, is called {name!r}: {found}")
    matrices = entry(layer, _MATRICES, "a BCOP layer")
    bias = entry(layer, "bias", "a BCOP layer") if "bias" in layer else None
    kernel, m = (len(matrices) + 1) // 2, matrices.shape[-1]
    if kernel % 2 == 0 and not shifted:
        raise ForeignWeightsError(
            f"the kernel is {kernel} x {kernel}: LConvNet pads even kernels by one pixel more in front, this library "
            "by one more behind, so that the output would be theirs moved by one pixel along both axes; pass "
            "shifted=True to take the layer so, and torch.roll(y, (1, 1), (-2, -1)) to move it back"
        )
    wide = in_channels if in_channels is not None else m // stride**2
    out = out_channels or (m if bias is None else len(bias))
    if kernel == 1 and wide * stride**2 <= out:
        if wide * stride**2 < out:
            raise ForeignWeightsError(
                f"LConvNet's own BCOP of kernel size 1 does not run from {wide * stride**2} to {out} channels"
            )
        # Alone among all its filters, that of one tap between equally many channels is not transposed.
        matrices = matrices.mT
    return bcop_from_matrices(matrices, bias, in_channels=wide, out_channels=out, stride=stride)
