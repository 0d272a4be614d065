"""Which node of the user's model a Relax variable holds the result of."""

from __future__ import annotations

import re

__all__ = ["node_index"]

_NODE_VARIABLE = re.compile(r"n(\d+)_[\d_]*$")


def node_index(name: str) -> int | None:
    """``i`` for a variable called ``n<i>_``, as frontends name results; ``None`` for others.

    Relax may append digits to make a name unique.
    """
    match = _NODE_VARIABLE.match(name)
    return int(match.group(1)) if match else None
