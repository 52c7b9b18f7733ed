"""Modules that only hold another one and run it: certificates, bounds and frozen models are of what they hold.

They are told by the full names of their classes, so that nothing is imported to tell them.
"""

from torch import nn

from skewconv.nn.own_code import replaced_forward, replaced_on, runs

# class: the attribute that holds the model
_HELD_AS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "lightning_fabric.wrappers._FabricModule": "_original_module",
    "lightning.fabric.wrappers._FabricModule": "_original_module",
}


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module is of a class that only holds another one."""
    return _kind(module) in _HELD_AS


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def held_model(module: nn.Module) -> tuple[str, nn.Module] | None:
    """The name and the model that a known wrapper holds; None for any other module, or one with hooks or a new forward.

    >>> from torch import nn
    >>> held_model(nn.DataParallel(nn.ReLU()))
    ('module', ReLU())
    """
    name = _HELD_AS.get(_kind(module))
    if name is None or module._forward_hooks or module._forward_pre_hooks or replaced_forward(type(module)) is not None:
        return None
    return None if is_rewired(module) or replaced_on(module) is not None else (name, getattr(module, name))


def is_rewired(module: nn.Module) -> bool:
    """Whether a known wrapper has a forward on the instance that does something else than to run what it holds."""
    if "forward" not in vars(module):
        return False
    # A compiled module has a forward of its own, which the compiler made.
    name = _HELD_AS[_kind(module)]
    return name != "_orig_mod" or not runs(vars(module)["forward"], getattr(module, name))


def inner_model(module: nn.Module) -> nn.Module:
    """What stands inside all the known wrappers around a model; the model itself where there is none."""
    while (held := held_model(module)) is not None:
        module = held[1]
    return module


def wrapper_hint(module: nn.Module) -> str:
    """What to do about a module that looks like a wrapper nobody knows: an addition to the reason of a refusal."""
    children = dict(module.named_children())
    if len(children) != 1 or any(True for _ in module.parameters(recurse=False)):
        return ""
    (name,) = children
    known = ", ".join(dict.fromkeys(kind.rpartition(".")[2].lstrip("_") for kind in _HELD_AS))
    return f" (if it only runs its '{name}', pass that: of wrappers, {known} are seen through)"
