"""Docstrings keep to the words of the field: openings and words that must not come back.

To change the rules change the two lists. Each word stands with the one to write instead; a phrase
in which a word is right is in ``_RIGHT``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tvm_edge", "schedules", "relay_passes", "benchmarks", "tools")

# A first line is an imperative or a noun phrase that stands alone.
_OPENING = re.compile(r"(?:What|How|That|Of|Whether|Where|Why|The same)\b")
_WORDS = {
    "behind": "after",
    "in front of": "before",
    "crossings": "copies",
    "the GPU's tensors": "tensors of the device",
}
_RIGHT = ("left behind", "what is behind them")  # nothing remains; things in a picture
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Parsing all modules takes seconds: only those are parsed that have one of these at all.
_SUSPECT = re.compile(rf'"""{_OPENING.pattern}|\b(?:{"|".join(_WORDS)})\b'.replace(" ", r"\s+"))


def docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of a module's or class's strings, of itself and of its names."""
    for each in getattr(node, "body", ()) if isinstance(node, _DOCUMENTED) else ():
        value = each.value if isinstance(each, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield each.lineno, " ".join(value.value.split())


def wrong(source: str) -> Iterator[str]:
    """Yield what the docstrings of a module break."""
    nodes = ast.walk(ast.parse(source)) if _SUSPECT.search(source) else ()
    for line, text in (found for node in nodes for found in docstrings(node)):
        if _OPENING.match(text):
            yield f"line {line}: begins with {text[:30]!r}; state it: 'Return …', or a noun"
        for phrase in _RIGHT:
            text = text.replace(phrase, "")
        for word, better in _WORDS.items():
            if re.search(rf"\b{word}\b", text):
                yield f"line {line}: has {word!r}; write {better!r}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_keep_to_the_words(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}, {each}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for each in wrong(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_word_that_came_back_is_found() -> None:
    source = (
        '"""Whether it runs."""\n\ndef f():\n    """Put it in front of a node.\n    """\n'
        'class C:\n    """Nothing is left behind."""\n\n    def _g(x):\n        """Run behind."""\n'
        'LEAST = 3\n"""Of a vector."""\n'
    )
    assert [each.partition(";")[0] for each in wrong(source)] == [
        "line 1: begins with 'Whether it runs.'",
        "line 12: begins with 'Of a vector.'",
        "line 4: has 'in front of'",
        "line 10: has 'behind'",
    ]
