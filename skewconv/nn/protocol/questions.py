"""What certify, freeze and audit ask of a module: its own method answers, else the rule of its type, else a refusal."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.module_tools import first_tensor
from skewconv.nn.protocol.bounds import lipschitz_upper_bound
from skewconv.nn.protocol.program import NOTHING, Float64Program, Growth, identity_program, proven_program
from skewconv.nn.protocol.rules import Links, Shape, rules_of
from skewconv.nn.protocol.trust import OverriddenError, carried, reason_to_doubt
from skewconv.nn.wrappers import held_model, wrapper_hint


class NoProgramError(UnboundedModuleError):
    """No certificate can be given, because of one module, named by its path from the model."""

    def __init__(self, module: nn.Module, reason: str, path: str = "") -> None:
        self.module, self.reason, self.path = module, reason, path
        where, kind = f"'{path}'" if path else "the model itself", type(module)
        super().__init__(
            f"no certificate can be given for {where} ({kind.__module__}.{kind.__qualname__}): {reason}; give the "
            "class a method float64_program(input_shape), register a rule with skewconv.nn.register_layer, or replace "
            "the module"
        )

    def below(self, path: str) -> "NoProgramError":
        """The same, where the model is itself a part of this path."""
        return NoProgramError(self.module, self.reason, ".".join(part for part in (path, self.path) if part))


def float64_program(module: nn.Module, input_shape: Shape, path: str = "") -> Float64Program:
    """The float64 program of a module (in eval mode and float64) with its proven bounds, or a refusal by name."""
    held = held_model(module)
    if held is not None:
        return chain_program([held], input_shape, path)
    doubt = reason_to_doubt(module)
    if doubt is not None:
        raise NoProgramError(module, doubt, path)
    try:
        chain, method = links(module), carried(module, "float64_program")
    except OverriddenError as error:
        raise NoProgramError(module, f"its rounding error is not known: {error}", path) from None
    if chain is not None:
        return chain_program(chain, input_shape, path)
    rule = rules_of(module).float64_program
    try:
        if method is not None:
            return method(input_shape)
        if rule is not None:
            return rule(module, input_shape)
    except NoProgramError as error:
        raise error.below(path) from None
    return _program_of_graph(module, input_shape, path)


def _program_of_graph(module: nn.Module, input_shape: Shape, path: str) -> Float64Program:
    """The program of a module of which nothing is said, from what its forward does."""
    # The graph's operations have the programs that are asked for here.
    from skewconv.nn.graph import graph_program, is_somebodys_own

    if not is_somebodys_own(module):
        raise NoProgramError(module, "its rounding error is not known" + wrapper_hint(module), path)
    try:
        return graph_program(module, input_shape, path)
    except NoProgramError:
        raise
    except UnboundedModuleError as error:
        raise NoProgramError(
            module, f"its rounding error is not known, and its graph gives none: {error}{wrapper_hint(module)}", path
        ) from error


def chain_program(layers: Iterable[tuple[str, nn.Module]], input_shape: Shape, path: str = "") -> Float64Program:
    """Named layers one after the other."""
    total = identity_program(input_shape)
    for name, child in layers:
        total = total.then(float64_program(child, total.shape, f"{path}.{name}" if path else name))
    return total


def module_program(module: nn.Module, input_shape: Shape, error: Growth, *, inner: Growth = NOTHING) -> Float64Program:
    """The forward of a module in float64 as its program, which errs by no more than this (see proven_program)."""
    bound = lipschitz_upper_bound(module, input_shape)
    tensors = [*module.parameters(), *module.buffers()]
    return proven_program(module, input_shape, bound, error, first_tensor(module).device, tensors, inner=inner)


def exact_program(module: nn.Module, input_shape: Shape) -> Float64Program:
    """The forward of a module that rounds nothing: it sorts, permutes, cuts, or takes maxima."""
    return module_program(module, input_shape, NOTHING)


def links(module: nn.Module) -> Links | None:
    """What a chain runs, named, in order; None for a module that does anything else.

    A module that a chain holds twice runs twice, one that it does not use never.
    """
    method = carried(module, "links")
    if method is not None:
        return method()
    rule = rules_of(module).links
    return None if rule is None else rule(module)


def flat_links(module: nn.Module, path: str = "") -> Links:
    """A chain of chains as one list, that of somebody's own modules by their graphs (see :mod:`skewconv.nn.graph`).

    A module with hooks or replaced methods stays whole, as does one whose graph is not known, to be refused by name.
    """
    from skewconv.nn.graph import graph_links, is_somebodys_own

    held = held_model(module)
    if held is not None:
        return flat_links(held[1], f"{path}.{held[0]}" if path else held[0])
    try:
        inner = None if reason_to_doubt(module) is not None else links(module)
        if inner is None and is_somebodys_own(module):
            inner = graph_links(module)
    except UnboundedModuleError:
        inner = None
    if not inner:
        return [(path, module)]
    prefix = f"{path}." if path else ""
    return [link for name, child in inner for link in flat_links(child, prefix + name)]


def has_frozen_form(module: nn.Module) -> bool:
    """Whether something else than a copy stands for the module in a frozen model."""
    return carried(module, "frozen_form") is not None or rules_of(module).frozen_form is not None


def frozen_form(module: nn.Module, input_shape: Shape, output_shape: Shape, tol: float) -> nn.Module:
    """The module for inference on inputs of one shape, from its own method or the rule of its type.

    Args:
        module: in eval mode, without gradients.
        input_shape, output_shape: of one input and one output.
        tol: the largest difference from the module, relative to the norm of the input.
    """
    method = carried(module, "frozen_form")
    if method is not None:
        return method(input_shape, output_shape, tol)
    rule = rules_of(module).frozen_form
    assert rule is not None
    return rule(module, input_shape, output_shape, tol)


def is_affine(module: nn.Module) -> bool:
    """Whether a module is known to be a linear map and a constant."""
    return bool(getattr(module, "is_affine", rules_of(module).is_affine))


def computes_as_stored(module: nn.Module) -> bool:
    """Whether a module in another precision makes the same sums and products of the same stored numbers."""
    return bool(getattr(module, "computes_as_stored", rules_of(module).computes_as_stored))


def shows_itself(module: nn.Module) -> bool:
    """Whether a module with parts has a row of its own in an audit, beside those of its parts."""
    return hasattr(module, "audit_facts")


def audit_facts(module: nn.Module, input_shape: Shape) -> dict[str, Any]:
    """What an audit shows of a module beside bounds and singular values."""
    method = getattr(module, "audit_facts", None)
    if callable(method):
        return method(input_shape)
    rule = rules_of(module).audit_facts
    return {} if rule is None else rule(module, input_shape)
