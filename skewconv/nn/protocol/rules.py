"""What is known of a type of layer that cannot carry it: PyTorch's own, and those of other packages.

Rules are found by exact type: a subclass may compute anything, so it has none until it is given some.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, TypeVar

from torch import nn

from skewconv.errors import ArgumentError
from skewconv.nn.protocol.program import Float64Program
from skewconv.nn.protocol.stored import StoredForm, enter_stored_form

Shape: TypeAlias = tuple[int, ...]
Links: TypeAlias = list[tuple[str, nn.Module]]
RuleT = TypeVar("RuleT", bound=Callable[..., Any])


@dataclass(frozen=True)
class LayerRules:
    """The methods of the protocol (see :mod:`skewconv.nn.protocol`) as functions whose first argument is the module.

    Args:
        lipschitz_upper_bound: (module, input_shape) -> a proven bound in eval mode.
        float64_program: (module, input_shape) -> the program that certificates run; without one, none can be given.
        frozen_form: (module, input_shape, output_shape, tol) -> the module for inference; without one, a copy.
        stored_form: how it is written to a file; without one, it cannot be.
        plain_form: (module) -> the same map in modules that know nothing of this library; those of PyTorch need none.
        audit_facts: (module, input_shape) -> further entries of its row in an audit.
        links: (module) -> the named modules that it runs one after the other, where that is all it does.
        is_affine: whether it is a linear map and a constant, so that its singular values say all.
        computes_as_stored: whether in another precision it makes the same sums and products of the same stored numbers,
            in any order; convolutions may be computed by transforms, and normalised filters are other numbers.
    """

    lipschitz_upper_bound: Callable[[Any, Shape], float] | None = None
    float64_program: Callable[[Any, Shape], Float64Program] | None = None
    frozen_form: Callable[[Any, Shape, Shape, float], nn.Module] | None = None
    stored_form: StoredForm | None = None
    plain_form: Callable[[Any], nn.Module] | None = None
    audit_facts: Callable[[Any, Shape], dict[str, Any]] | None = None
    links: Callable[[Any], Links] | None = None
    is_affine: bool = False
    computes_as_stored: bool = False


_RULES: dict[type[nn.Module], LayerRules] = {}


def rules_of(module: nn.Module) -> LayerRules:
    """The rules of exactly this type; empty ones if there are none."""
    return _RULES.get(type(module), LayerRules())


def registered_types() -> list[type[nn.Module]]:
    """Every type that has rules."""
    return list(_RULES)


def register_layer(*kinds: type[nn.Module], **rules: Any) -> None:
    """Say what is known of layers of exactly these types; what was said before is not replaced.

    >>> from torch import nn
    >>> from skewconv.nn.protocol import exact_program, lipschitz_upper_bound
    >>> class Reversed(nn.Module):
    ...     def forward(self, x):
    ...         return x.flip(-1)
    >>> register_layer(Reversed, lipschitz_upper_bound=lambda module, shape: 1.0, float64_program=exact_program)
    >>> lipschitz_upper_bound(Reversed(), (3,))
    1.0

    Args:
        kinds: classes that cannot have the methods of :mod:`skewconv.nn.protocol` themselves.
        rules: the fields of :class:`skewconv.nn.protocol.LayerRules`.
    """
    known = {field.name for field in fields(LayerRules)}
    if not rules or not set(rules) <= known:
        raise ArgumentError(f"rules must be among {', '.join(sorted(known))}, got {', '.join(rules) or 'none'}")
    for kind in kinds:
        enter_rules(kind, LayerRules(**rules))


def enter_rules(kind: type[nn.Module], rules: LayerRules) -> None:
    """Add rules to those that a type has; none is replaced."""
    earlier = _RULES.get(kind, LayerRules())
    said = {name: rule for name, rule in vars(rules).items() if rule}
    twice = [name for name in said if getattr(earlier, name)]
    if twice:
        raise ArgumentError(
            f"a rule ({twice[0]}) is already registered for {kind.__qualname__}; it is not replaced silently"
        )
    _RULES[kind] = replace(earlier, **said)
    if rules.stored_form is not None:
        enter_stored_form(kind, rules.stored_form)


def register_bound(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> float that bounds modules of exactly these types.

    >>> from torch import nn
    >>> from skewconv.nn.protocol import lipschitz_upper_bound
    >>> class Half(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @register_bound(Half)
    ... def half(module, input_shape):
    ...     return 0.5
    >>> lipschitz_upper_bound(Half(), (3,))
    0.5
    """
    return _registering("lipschitz_upper_bound", kinds)


def register_rounding(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> Float64Program for modules of exactly these types.

    >>> from torch import nn
    >>> from skewconv.nn.protocol import exact_program
    >>> class Twice(nn.Module):
    ...     def forward(self, x):
    ...         return 2 * x
    ...     def lipschitz_upper_bound(self, input_shape):
    ...         return 2.0
    >>> @register_rounding(Twice)
    ... def twice(module, input_shape):
    ...     return exact_program(module, input_shape)
    """
    return _registering("float64_program", kinds)


def _registering(name: str, kinds: tuple[type[nn.Module], ...]) -> Callable[[RuleT], RuleT]:
    def register(rule: RuleT) -> RuleT:
        register_layer(*kinds, **{name: rule})
        return rule

    return register
