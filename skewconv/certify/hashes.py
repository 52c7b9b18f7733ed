"""SHA-256 of weights and of data: what a certificate belongs to."""

import hashlib

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import Certifier
from skewconv.nn.module_tools import unwrapped


def weights_hash(model: nn.Module) -> str:
    """Of every parameter and buffer: name, dtype, shape and bits, in the order of the names; wrappers have no say.

    >>> from torch import nn
    >>> layer = nn.Linear(2, 2)
    >>> before = weights_hash(layer)
    >>> layer.weight.data[0, 0] += 1
    >>> weights_hash(layer) == before
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(unwrapped(model).state_dict().items()):
        digest.update(f"{name}:".encode())
        _update(digest, tensor)
    return digest.hexdigest()


def operators_hash(certifier: Certifier) -> str:
    """Of every tensor that the certified program multiplies by: dtype, shape and bits, in the order of the layers.

    Scales and orthogonal matrices are computed from the weights, and may differ in the last bit with the number of
    threads: with equal hashes two certificates are of one function, bit for bit.
    """
    digest = hashlib.sha256()
    for tensor in certifier.operators:
        _update(digest, tensor)
    return digest.hexdigest()


def data_hash(images: Tensor, labels: Tensor) -> str:
    """Of images and labels: dtype, shape and bits."""
    digest = hashlib.sha256()
    _update(digest, images)
    _update(digest, labels)
    return digest.hexdigest()


def _update(digest: "hashlib._Hash", tensor: Tensor) -> None:
    plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    digest.update(f"{plain.dtype}{tuple(plain.shape)};".encode())
    # Every dtype, also those NumPy does not know, as bytes.
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
