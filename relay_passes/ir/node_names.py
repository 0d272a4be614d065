"""Names of Relax variables, which say the node of the user's model."""

from __future__ import annotations

import re

__all__ = ["node_index"]

_NODE_VARIABLE = re.compile(r"n(\d+)_[\d_]*$")


def node_index(name: str) -> int | None:
    """Return ``i`` for a variable called ``n<i>_``, as frontends name results; else ``None``.

    Relax may append digits to make a name unique.
    """
    match = _NODE_VARIABLE.match(name)
    return int(match.group(1)) if match else None
