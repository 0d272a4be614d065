"""Tests import from no test: a helper is in a module of its own, and a test can be moved."""

from __future__ import annotations

import re
from pathlib import Path

_IMPORT = re.compile(r"^\s*(?:from|import) tests[\w.]*\.test_\w+.*", re.MULTILINE)


def test_no_module_imports_a_test() -> None:
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        assert _IMPORT.findall(path.read_text()) == [], path
