"""The contract between kernels and the rules that schedule them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tvm import ir, s_tir, tirx

from tvm_edge.hardware import DeviceSpec

__all__ = [
    "PRECISION",
    "WORKSPACE",
    "Origin",
    "ScheduleRule",
    "Scheduled",
    "apply_first",
    "workspace_of",
]

PRECISION = "tvm_edge.precision"
"""Attribute of a kernel: how its products may be rounded, one of ``compile``'s ``precision=``."""

WORKSPACE = "tvm_edge.workspace"
"""Number of a kernel's last parameters that are workspace, which nobody else reads."""

Origin = Literal["tuned", "transferred", "heuristic", "fallback"]
"""Source of a kernel's schedule.

``tuned``: a record of this device; ``transferred``: a record of a like device; ``heuristic``: a
template that knows the operator, with knobs from a rule; ``fallback``: the generic loop schedule
that any kernel gets when no template takes it.
"""


class ScheduleRule(Protocol):
    """One family of kernels and how to schedule it.

    A rule says "not mine" by returning ``None``; rules are tried in order.
    """

    name: str
    origin: Origin = "heuristic"

    @abstractmethod
    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> s_tir.Schedule | tirx.PrimFunc | None:
        """Schedule `func` for the device, or write it anew; ``None`` if another rule should try."""
        ...


@dataclass(frozen=True)
class Scheduled:
    """A scheduled kernel and which rule did it."""

    func: tirx.PrimFunc
    rule: str
    origin: Origin


def apply_first(
    rules: Sequence[ScheduleRule], func: tirx.PrimFunc, spec: DeviceSpec
) -> Scheduled | None:
    """Schedule `func` with the first rule that takes it; ``None`` if none does.

    A kernel that says ``tirx.is_scheduled`` was written with its loops in place and stays as it is.
    """
    if func.attrs is not None and func.attrs.get("tirx.is_scheduled", False):
        return Scheduled(func, "handwritten", "heuristic")
    for rule in rules:
        made = rule.apply(func, spec)
        if made is not None:
            # A rule works on the module of one function that Schedule() made of it, whose name is
            # "main"; the attributes (global symbol, target, noalias) are the kernel's own.
            done = made if isinstance(made, tirx.PrimFunc) else made.mod["main"]
            return Scheduled(done.with_attrs(func.attrs), rule.name, rule.origin)
    return None


def workspace_of(func: ir.BaseFunc) -> list[tirx.Buffer]:
    """The parameters of a scheduled kernel that its rule added after the results."""
    if not isinstance(func, tirx.PrimFunc):
        return []
    count = 0 if func.attrs is None else int(func.attrs.get(WORKSPACE, 0))
    return list(func.params)[len(func.params) - count :]
