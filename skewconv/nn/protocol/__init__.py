"""What a layer carries: the methods by which it takes part in certify, freeze, audit and their files.

A layer is a module with a ``forward`` and, in its own class,

- ``lipschitz_upper_bound(input_shape) -> float``: a proven bound of its map in eval mode;
- ``float64_program(input_shape) -> Float64Program``: what a certificate runs, with a proven bound on its rounding error
  (called on a copy in float64 and eval mode). :func:`exact_program` is that of a layer that rounds nothing,
  :mod:`products <skewconv.nn.protocol.products>` has those of matrices and filters;
- ``frozen_form(input_shape, output_shape, tol) -> module``: what stands for it in a frozen model; without it, a copy;
- ``plain_form() -> module``: the same map in PyTorch alone, of a layer as it stands in a frozen model, to be exported;
- ``storable`` as its decorator, if a frozen model that holds it is to be written to a file;
- ``is_affine = True`` if it is a linear map and a constant, and ``audit_facts(input_shape) -> dict`` for what an audit
  shows of it beside bounds and singular values;
- ``computes_as_stored = True`` if in float32 it makes the same sums and products of the same stored numbers;
- ``links() -> [(name, module), ...]`` if it only runs these modules one after the other.

Subclasses inherit these while they override nothing else. A type that cannot carry them, such as PyTorch's own, has
:class:`LayerRules` of the same names in one registry, filled by :mod:`skewconv.nn.torch_layers` and by
:func:`register_layer`. Whoever asks (:mod:`questions <skewconv.nn.protocol.questions>`) knows no layer by name.
"""

from skewconv.nn.protocol.bounds import NoBoundError, lipschitz_upper_bound, output_shape
from skewconv.nn.protocol.plain import NoPlainFormError, plain_form
from skewconv.nn.protocol.program import (
    NOTHING,
    Float64Program,
    Growth,
    identity_program,
    proven_program,
)
from skewconv.nn.protocol.questions import (
    NoProgramError,
    audit_facts,
    chain_program,
    computes_as_stored,
    exact_program,
    flat_links,
    float64_program,
    frozen_form,
    has_frozen_form,
    is_affine,
    links,
    module_program,
    shows_itself,
)
from skewconv.nn.protocol.rules import (
    LayerRules,
    Links,
    Shape,
    register_bound,
    register_layer,
    register_rounding,
    registered_types,
    rules_of,
)
from skewconv.nn.protocol.stored import StoredForm, storable
from skewconv.nn.protocol.trust import OverriddenError, carried, reason_to_doubt

__all__ = [
    "NOTHING",
    "Float64Program",
    "Growth",
    "LayerRules",
    "Links",
    "NoBoundError",
    "NoPlainFormError",
    "NoProgramError",
    "OverriddenError",
    "Shape",
    "StoredForm",
    "audit_facts",
    "carried",
    "chain_program",
    "computes_as_stored",
    "exact_program",
    "flat_links",
    "float64_program",
    "frozen_form",
    "has_frozen_form",
    "identity_program",
    "is_affine",
    "links",
    "lipschitz_upper_bound",
    "module_program",
    "output_shape",
    "plain_form",
    "proven_program",
    "reason_to_doubt",
    "register_bound",
    "register_layer",
    "register_rounding",
    "registered_types",
    "rules_of",
    "shows_itself",
    "storable",
]
