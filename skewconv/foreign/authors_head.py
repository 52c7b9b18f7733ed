"""The last layer of the authors' LipConvNet, a layer of one tap on one pixel, as the matrix of an OrthogonalLinear."""

import torch
from torch import Tensor

from skewconv.foreign.matrices import generator_of_rows, polar_factor
from skewconv.foreign.state import ForeignWeightsError, State, entry
from skewconv.nn.cayley import cayley
from skewconv.nn.soc.free_half import free_half, taps_of


def orthogonal_head(entries: State, conv: str, features: int, classes: int) -> dict[str, Tensor]:
    """The entries of an OrthogonalLinear without its bias: exp(A), A the generator, is their matrix.

    Args:
        entries: of their layer.
        conv: "soc", "bcop" or "cayley", the kind of the layer.
        features, classes: sizes of the matrix.
    """
    if conv == "soc":
        raw = entry(entries, "random_conv_filter", "the last layer")
        if raw.dim() != 4 or raw.shape != (raw.shape[0], raw.shape[0], 1, 1):
            raise ForeignWeightsError(f"'random_conv_filter' has shape {tuple(raw.shape)}: theirs is (m, m, 1, 1)")
        matrix = raw[:, :, 0, 0].to(torch.float64)
        skew = matrix - matrix.T
        return _generator(skew / torch.linalg.matrix_norm(skew, 2).clamp_min(torch.finfo(torch.float64).tiny), raw)
    if conv == "bcop":
        raw = entry(entries, "conv_matrices", "the last layer")
        rows = polar_factor(raw)[0, :features, :classes].T
    else:
        raw = entry(entries, "weight", "the last layer").to(torch.float64)
        rows = cayley(entry(entries, "alpha", "the last layer") * raw / raw.norm())
    if rows.shape != (classes, features):
        raise ForeignWeightsError(f"the matrix is {rows.shape[0]} x {rows.shape[1]}")
    generator = generator_of_rows(rows) if classes <= features else -generator_of_rows(rows.T)
    return _generator(generator, entry(entries, "bias", "the last layer"))


def _generator(skew: Tensor, like: Tensor) -> dict[str, Tensor]:
    _, centre, _ = free_half(skew[:, :, None], taps_of((1,)), 1)
    return {"generator": centre[0].to(like.dtype)}
