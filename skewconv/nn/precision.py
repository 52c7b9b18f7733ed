"""The precision in which a layer computes its operator from its parameters."""

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The tensor's own precision, but no less than float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def at_precision(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another precision, on the CPU if its device has no float64."""
    if dtype == torch.float64 and tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(dtype)
