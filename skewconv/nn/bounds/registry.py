"""Rules by the exact type of a module: a subclass may compute anything, so it has no rule until it is given one."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from skewconv.errors import ArgumentError

RuleT = TypeVar("RuleT", bound=Callable[..., Any])


def registering(rules: dict[type[nn.Module], Any], kinds: tuple[type[nn.Module], ...]) -> Callable[[RuleT], RuleT]:
    """A decorator that enters a rule for these types, none of which may have one."""
    for kind in kinds:
        if kind in rules:
            raise ArgumentError(f"a rule is already registered for {kind.__qualname__}; it is not replaced silently")

    def register(rule: RuleT) -> RuleT:
        rules.update(dict.fromkeys(kinds, rule))
        return rule

    return register
