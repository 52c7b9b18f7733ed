"""Rows of words as aligned text."""

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str], left: int) -> str:
    """The rows between two rules, under a header and above a total; the first ``left`` columns to the left.

    >>> print(format_table(("layer", "size"), [("a", "10"), ("b", "2")], ("both", "12"), left=1))
    layer  size
    -----------
    a        10
    b         2
    -----------
    both     12
    """
    lines = [header, *rows, total]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    rule = "-" * len(text[0])
    return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])
