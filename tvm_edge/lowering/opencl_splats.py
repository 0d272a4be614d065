"""Vectors of one number: written once.

TVM writes ``((float16)(x, x, …))``, sixteen times the text of a load with its index: most of what a
convolution's source is. The runtime has the sources in memory, and the driver has to read them.
"""

from __future__ import annotations

import re

__all__ = ["with_splats"]

# Floating point alone: of a bool, a vector of integers would be -1 where its elements are 1.
_LITERAL = re.compile(r"\((?:half|float|double)(2|3|4|8|16)\)\(")
_MARK = re.compile(r"[()\[\]{},]")


def with_splats(source: str) -> str:
    """The source with vectors of floating-point numbers that are all the same widened from one.

    Examples
    --------
    ``((float4)(a[i], a[i], a[i], a[i]))`` becomes ``((float4)(a[i]))``.
    """
    parts = []
    position = 0
    while (literal := _LITERAL.search(source, position)) is not None:
        start = literal.end()
        end = _end_of_argument(source, start)
        element = source[start:end]
        others = f", {element}" * (int(literal[1]) - 1) + ")"
        parts.append(source[position:start])
        position = start
        if source.startswith(others, end):
            parts.append(f"{with_splats(element)})")
            position = end + len(others)
    return "".join(parts) + source[position:]


def _end_of_argument(text: str, start: int) -> int:
    """Find the end of the argument that begins there: a comma or the closing parenthesis."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        if mark[0] in "([{":
            depth += 1
        elif depth and mark[0] != ",":
            depth -= 1
        elif not depth:
            return mark.start()
    raise ValueError(f"no end of a vector's elements in {text[start : start + 80]!r}")
