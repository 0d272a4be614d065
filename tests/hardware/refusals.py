"""Targets that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_edge.errors import InputError
from tvm_edge.hardware import resolve_target


def refused(target: Any, *fragments: str) -> InputError:
    """Resolve `target` and check what the error says."""
    with pytest.raises(InputError) as caught:
        resolve_target(target)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert caught.value.exit_code == 4
    return caught.value
