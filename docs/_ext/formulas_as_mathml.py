"""Formulas become MathML when the pages are built: browsers show it by themselves, without a script or a network."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    try:
        # Inside of \\text the converter leaves the backslash of an underscore where it is.
        return str(tex2mathml(node.astext(), as_block=as_block)).replace(r"\_", "_")
    except MathError as error:
        # A page whose formula cannot be shown is not built.
        raise ValueError(f"the formula {node.astext()!r} cannot be written as MathML: {error}") from error


def _inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Offer the renderer to Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
