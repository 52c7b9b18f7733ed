"""A module of somebody's own, read from the graph of its forward: residual sums, joins, scalings, known layers.

``torch.fx`` runs the forward on symbols (:mod:`tracing`). Where all later values depend on one earlier value alone the
graph is cut, so that a plain network becomes a chain of its layers, and what has branches a :class:`GraphPart`. A part
follows its graph on one image and derives for every value a Lipschitz bound, its size, and its rounding error
(:mod:`values`), by the layers' own programs and a rule for every operation between them (:mod:`operations`). Functions
such as ``F.relu`` are taken for the layers that they are (:mod:`functions`). Whatever is not known is refused by name.
"""

from skewconv.nn.graph.functions import layer_of_function
from skewconv.nn.graph.part import GraphPart
from skewconv.nn.graph.tracing import graph_links, is_somebodys_own, traced_graph
from skewconv.nn.graph.whole import graph_bound, graph_program

__all__ = [
    "GraphPart",
    "graph_bound",
    "graph_links",
    "graph_program",
    "is_somebodys_own",
    "layer_of_function",
    "traced_graph",
]
