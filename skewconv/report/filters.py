"""The first filters of a network as they act: what part of the input each output of its first convolution reads."""

import torch
from torch import Tensor, nn

from skewconv.report.pictures import data_uri, stretched

_SHARE = 1e-2


def first_filters(model: nn.Module, input_shape: tuple[int, ...], count: int = 32) -> list[str]:
    """Pictures of the first convolution's filters, as addresses for a page; none if there is no such layer.

    The picture of an output channel is the gradient of its middle pixel by the layer's input: for a plain convolution
    its kernel, for an orthogonal one the kernel that its parametrisation amounts to.

    Args:
        model: images to logits.
        input_shape: (1 or 3, H, W).
        count: how many channels at most.
    """
    found = _first_convolution(model, input_shape)
    if found is None:
        return []
    layer, given = found
    tensor = next(iter(layer.parameters()), given)
    x = torch.zeros(1, *given.shape[1:], device=tensor.device, dtype=tensor.dtype, requires_grad=True)
    with torch.enable_grad():
        out = layer(x)
        middle = out[0, :count, out.shape[2] // 2, out.shape[3] // 2]
        kernels = torch.stack([torch.autograd.grad(value, x, retain_graph=True)[0][0] for value in middle])
    kernels = _cropped(kernels.double().cpu())
    return [data_uri(stretched(kernel.numpy()), least_side=48) for kernel in kernels]


def _first_convolution(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[nn.Module, Tensor] | None:
    """The first layer to run that maps an image of 1 or 3 channels to another number of them, and its input."""
    seen: list[tuple[nn.Module, Tensor]] = []

    def look(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        image = given[0].dim() == 4 and isinstance(out, Tensor) and out.dim() == 4
        if image and given[0].shape[1] in (1, 3) and any(True for _ in module.parameters(recurse=False)):
            seen.append((module, given[0].detach()))

    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    handles = [module.register_forward_hook(look) for module in leaves]
    tensor = next(iter(model.parameters()))
    try:
        with torch.no_grad():
            model(torch.zeros(1, *input_shape, device=tensor.device, dtype=tensor.dtype))
    finally:
        for handle in handles:
            handle.remove()
    return seen[0] if seen else None


def _cropped(kernels: Tensor) -> Tensor:
    """The square around the middle outside which all entries are below a hundredth of the largest; at least 3 x 3."""
    middle = [side // 2 for side in kernels.shape[2:]]
    large = (kernels.abs() > _SHARE * kernels.abs().max()).any(0).any(0).nonzero()
    reach = max([1, *((large - torch.tensor(middle)).abs().max(0).values.tolist() if len(large) else [])])
    rows, columns = (slice(max(at - reach, 0), at + reach + 1) for at in middle)
    return kernels[:, :, rows, columns]
