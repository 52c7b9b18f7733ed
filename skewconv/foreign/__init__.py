"""Weights that were trained with other code: the authors' SOC repository, and LConvNet's BCOP."""

from skewconv.foreign.authors_layers import bcop_from_authors, cayley_from_authors, soc_from_authors
from skewconv.foreign.authors_network import ImportedNetwork, lipconvnet_from_authors
from skewconv.foreign.lconvnet import bcop_from_lconvnet
from skewconv.foreign.state import ForeignWeightsError, read_state_dict

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
