"""Weights trained with the SOC authors' code."""

from skewconv.foreign.layers import ForeignWeightsError, read_state_dict, soc_from_authors
from skewconv.foreign.network import ImportedNetwork, lipconvnet_from_authors

__all__ = [
    "ForeignWeightsError",
    "ImportedNetwork",
    "lipconvnet_from_authors",
    "read_state_dict",
    "soc_from_authors",
]
