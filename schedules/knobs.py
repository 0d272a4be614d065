"""Knobs of schedules as text: how they stand in a kernel's annotations and in records."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["CONFIG", "knobs_as_dict", "knobs_as_text", "read_knobs"]

CONFIG = "tvm_edge.config"
"""Annotation of a block with its knobs as text; without it the schedule chooses them."""

Knobs = TypeVar("Knobs", bound="DataclassInstance")
Value = int | bool | str

_BOOLS = {"True": True, "False": False}


def knobs_as_text(knobs: DataclassInstance) -> str:
    """``name=value`` of each field, in order; values are numbers, truth values or words."""
    # Not `asdict`, which copies each value: a network's record lookup writes 20,000 of these.
    return " ".join(f"{each.name}={getattr(knobs, each.name)}" for each in fields(knobs))


def knobs_as_dict(text: str) -> dict[str, Value]:
    """The knobs that :func:`knobs_as_text` wrote, by name."""
    found: dict[str, Value] = {}
    for pair in text.split():
        name, value = pair.split("=")
        found[name] = _BOOLS[value] if value in _BOOLS else int(value) if _is_int(value) else value
    return found


def read_knobs(kind: type[Knobs], text: str) -> Knobs:
    """The knobs of a kind that :func:`knobs_as_text` wrote."""
    return kind(**knobs_as_dict(text))


def _is_int(text: str) -> bool:
    return text.lstrip("-").isdigit()
