"""Whether a program computes what its model computes, seen on two inputs.

A program is derived from the types of the layers. A class whose forward was changed, or a layer that looks across the
batch, computes something else, and nothing proven of the program is then true of the model.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn._cache import EvalCache

# Two evaluations in float64 agree far better than this, and different functions hardly ever so well.
_TOLERANCE = 1e-6


def refuse_another_function(
    model: nn.Module, run: Callable[[Tensor], Tensor], shape: tuple[int, ...], device: torch.device
) -> None:
    """Compare the model, one input at a time, with the program, both inputs at once.

    Args:
        model: in float64 and eval mode. What its layers keep for later runs is dropped, as there are none.
        run: (batch, *shape) -> (batch, classes).
        shape: of one input.
    """
    generator = torch.Generator().manual_seed(0)
    draws = [draw(1, *shape, generator=generator, dtype=torch.float64) for draw in (torch.rand, torch.randn)]
    x = torch.cat(draws).to(device)
    with torch.no_grad():
        alone = torch.cat([model(row[None].clone()) for row in x])
        together = run(x)
    for module in model.modules():
        # A cache is copied empty.
        vars(module).update({k: copy.copy(v) for k, v in vars(module).items() if isinstance(v, EvalCache)})
    size = 1 + float(torch.nan_to_num(alone).abs().max()) if alone.numel() else 1.0
    if alone.shape != together.shape or not torch.allclose(
        alone, together.to(alone), rtol=0.0, atol=_TOLERANCE * size, equal_nan=True
    ):
        raise UnboundedModuleError(
            f"no certificate can be given for {type(model).__name__}: it computes something else than its layers do, "
            "one after the other and image by image; was a forward replaced, or does a layer mix the images of a batch?"
        )
