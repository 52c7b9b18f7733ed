"""Weights trained with other code: the SOC authors' repository, and LConvNet's BCOP."""

from skewconv.foreign.layers import (
    ForeignWeightsError,
    bcop_from_authors,
    bcop_from_lconvnet,
    cayley_from_authors,
    read_state_dict,
    soc_from_authors,
)
from skewconv.foreign.network import ImportedNetwork, lipconvnet_from_authors

__all__ = [
    "ForeignWeightsError",
    "ImportedNetwork",
    "bcop_from_authors",
    "bcop_from_lconvnet",
    "cayley_from_authors",
    "lipconvnet_from_authors",
    "read_state_dict",
    "soc_from_authors",
]
