"""The plain form of a frozen model: the same map in modules that need PyTorch only, ready to be written elsewhere."""

import copy

from torch import nn

from skewconv.errors import SkewconvError
from skewconv.nn.protocol.questions import links
from skewconv.nn.protocol.rules import rules_of
from skewconv.nn.protocol.trust import carried, reason_to_doubt


class NoPlainFormError(SkewconvError):
    """A module that cannot be exported, named by its path from the model."""

    def __init__(self, module: nn.Module, reason: str, path: str = "") -> None:
        self.module, self.reason, self.path = module, reason, path
        where, kind = f"'{path}'" if path else "the model itself", type(module)
        super().__init__(
            f"{where} ({kind.__module__}.{kind.__qualname__}) cannot be exported: {reason}; give the class a method "
            "plain_form() that makes the same map of torch.nn modules, or replace the module"
        )


def plain_form(module: nn.Module, path: str = "") -> nn.Module:
    """The module in PyTorch alone, from its own method or the rule of its type; a chain becomes an nn.Sequential.

    >>> from skewconv.nn import MaxMin
    >>> plain_form(nn.Sequential(nn.Flatten(), MaxMin()))
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): MaxMin()
    )

    Args:
        module: as it stands in a frozen model.
        path: its name from the model, for the refusal.
    """
    doubt = reason_to_doubt(module)
    if doubt is not None:
        raise NoPlainFormError(module, doubt, path)
    chain = links(module)
    if chain is not None:
        forms = [(name, plain_form(child, f"{path}.{name}" if path else name)) for name, child in chain]
        return _sequence(forms)
    method, rule = carried(module, "plain_form"), rules_of(module).plain_form
    try:
        if method is not None or rule is not None:
            return method() if method is not None else rule(module)  # type: ignore[misc]
    except NoPlainFormError as error:
        raise NoPlainFormError(error.module, error.reason, ".".join(p for p in (path, error.path) if p)) from None
    if type(module).__module__.startswith("torch.nn."):
        return copy.deepcopy(module)
    raise NoPlainFormError(module, "nothing says how to write it without this library", path)


def _sequence(forms: list[tuple[str, nn.Module]]) -> nn.Sequential:
    sequence = nn.Sequential()
    for name, form in forms:
        # A path has dots, which a module's name may not have.
        sequence.add_module(name.replace(".", "_"), form)
    return sequence
