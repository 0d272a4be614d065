"""Sphinx's roles in docstrings (``:func:`name```) as the Markdown that MkDocs understands."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`([^`]+)`")
_LITERAL_BLOCK = re.compile(r"::$", re.MULTILINE)


def markdown(text: str) -> str:
    """`text` with the names in code's type, and short where Sphinx would shorten them."""

    def name(match: re.Match[str]) -> str:
        path = match[1]
        return f"`{path[1:].rpartition('.')[2] if path.startswith('~') else path}`"

    return _LITERAL_BLOCK.sub(":", _ROLE.sub(name, text))


class DocsRoles(griffe.Extension):
    """Rewrites every docstring before it is taken apart."""

    def on_instance(self, *, obj: griffe.Object, **_options: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
