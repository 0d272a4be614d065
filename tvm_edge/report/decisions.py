"""Decisions of a compilation: where each operator runs, in which kernel, with which memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_edge.report.layouts import LayoutsInfo
from tvm_edge.report.memory import MemoryInfo
from tvm_edge.report.operators import (
    FlopsDistribution,
    OperatorInfo,
    OperatorTypeInfo,
    UnsupportedInfo,
    distribute,
    total_by_type,
)
from tvm_edge.report.precision import PrecisionInfo
from tvm_edge.report.records import RecordsInfo
from tvm_edge.report.splits import SplitInfo

__all__ = ["Decisions", "KernelInfo", "Launches", "ModelAlone", "Placement", "read_kernels"]

_NAMED = 6  # types of operators on the CPU in a line


@dataclass(frozen=True)
class Placement:
    """Device of one operator of the user's model.

    Attributes
    ----------
    operator, op_type : str
        Name and type in the model.
    device : str
        ``"llvm"``, ``"opencl"``, …; empty for an operator that vanished at compile time.
    reason : str
        Reason for the device.
    """

    operator: str
    op_type: str
    device: str
    reason: str


@dataclass(frozen=True)
class KernelInfo:
    """One kernel launch, in execution order.

    Attributes
    ----------
    name : str
        The function in the library; launches of one function share it.
    operators : tuple[str, ...]
        The user's operators it computes.
    device : str
    origin : {"tuned", "transferred", "heuristic", "fallback"}
        Source of its schedule.
    rule : str
        The schedule rule.
    flops : float
        Arithmetic operations of a run, a multiply-add counted as two: those of its operators'
        definitions (:class:`~tvm_edge.report.OperatorInfo`). An operator computed by several
        kernels is shared out by their loops. Where a definition does not say, the number of the
        kernel's own loops; 0 where shapes are dynamic.
    bytes : int
        Bytes of its arguments, each counted once: the traffic that no schedule avoids. Open
        dimensions have their typical lengths.
    weights, results, workspace : int
        Bytes of its constants as stored, of what it writes, and of its scratch space.
    streamed : int
        Part of `weights` that every run reads from the artifact.
    """

    name: str
    operators: tuple[str, ...]
    device: str
    origin: str
    rule: str
    flops: float
    bytes: int
    weights: int = 0
    results: int = 0
    workspace: int = 0
    streamed: int = 0


@dataclass(frozen=True)
class Launches:
    """Kernel launches of a run, of code that a report does not describe.

    Attributes
    ----------
    kernels : tuple[KernelInfo, ...]
        Kernels of a run of all models.
    alone : tuple[tuple[KernelInfo, ...], ...]
        Kernels of each of several models by itself.
    """

    kernels: tuple[KernelInfo, ...]
    alone: tuple[tuple[KernelInfo, ...], ...] = ()

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Launches:
        """The inverse of :func:`dataclasses.asdict`."""
        return cls(read_kernels(fields["kernels"]), tuple(map(read_kernels, fields["alone"])))


@dataclass(frozen=True)
class ModelAlone:
    """Kernels and memory of one of several models where it runs alone.

    Attributes
    ----------
    name : str
    kernels : tuple[KernelInfo, ...]
        In execution order.
    memory : MemoryInfo
        Weights are those that it reads; all are there.
    """

    name: str
    kernels: tuple[KernelInfo, ...]
    memory: MemoryInfo


@dataclass(frozen=True)
class Decisions:
    """All that a compilation decided; :class:`~tvm_edge.CompileReport` describes the fields."""

    model: str
    target: str
    placements: tuple[Placement, ...]
    kernels: tuple[KernelInfo, ...]
    memory: MemoryInfo | None
    partitions: tuple[tuple[str, int], ...] = ()
    copies: tuple[dict[str, Any], ...] = ()
    fusion_groups: tuple[dict[str, Any], ...] = ()
    layouts: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    operators: tuple[OperatorInfo, ...] = ()
    unsupported: tuple[UnsupportedInfo, ...] = ()
    precision: PrecisionInfo | None = None
    records: RecordsInfo | None = None
    layout_choice: LayoutsInfo | None = None
    models: tuple[ModelAlone, ...] = ()
    splits: tuple[SplitInfo, ...] = ()

    @property
    def flops(self) -> float:
        """Arithmetic operations of one run: of the operators whose count is known."""
        return float(sum(operator.flops or 0 for operator in self.operators))

    def operator_types(self) -> tuple[OperatorTypeInfo, ...]:
        """The operators added up by type, most FLOPs first."""
        return total_by_type(self.operators)

    def flops_distribution(self, of: str = "operators") -> FlopsDistribution:
        """Return the spread of the work over operators, or over kernels (EMDL'21, Figure 2).

        Parameters
        ----------
        of : {"operators", "kernels"}
            The operators of the model that are not constant, each by itself, as in the figure; or
            kernel launches, each with what is fused into it.

        Raises
        ------
        ValueError
            Another `of`.
        """
        if of == "kernels":
            return distribute(of, (kernel.flops for kernel in self.kernels))
        if of == "operators":
            return distribute(of, (float(o.flops or 0) for o in self.operators if not o.constant))
        raise ValueError(f"a distribution of {of!r}: use 'operators' or 'kernels'")

    @property
    def copied(self) -> tuple[dict[str, Any], ...]:
        """The tensors that are copied between devices, not shared."""
        # Artifacts of earlier versions do not say it.
        return tuple(copy for copy in self.copies if not copy.get("zero_copy"))

    def placement_line(self) -> str:
        """One line: operators on the device, partitions, copies, and what runs on the CPU.

        Examples
        --------
        ``llvm 122/122 operators, 1 partition, 0 copies``

        ``opencl 121/122 operators, 3 partitions, 3 copies, 96 KiB; CPU: NonMaxSuppression ×1``

        ``llvm 83/83 operators, 1 partition, 0 copies; nothing runs on opencl, all on the CPU``
        """
        placed = [p for p in self.placements if p.device]
        beside = Counter(p.op_type for p in placed if p.device == "llvm")
        if self.target.startswith("llvm"):
            beside.clear()
        counts = Counter(p.device for p in placed)
        parts = [
            f"{device} {count}/{len(placed)} operators"
            for device, count in counts.items()
            if device != "llvm" or len(counts) == 1
        ] or ["no operators"]
        parts.append(_number(len(self.partitions), "partition"))
        copied, shared = self.copied, len(self.copies) - len(self.copied)
        parts.append(_number(len(copied), "copy", "copies"))
        if copied:
            size = f"{math.ceil(sum(copy['bytes'] for copy in copied) / 1024):,} KiB"
            known = all(copy["bytes"] for copy in copied)  # else it depends on data
            parts.append(size if known else f"{size} and what depends on data")
        if shared:
            parts.append(f"{_number(shared, 'tensor')} in shared memory")
        line = ", ".join(parts)
        if deserted := self.deserted_line():
            line += f"; {deserted}"
        elif beside:
            named = [f"{op_type} ×{count}" for op_type, count in beside.most_common(_NAMED)]
            line += f"; CPU: {', '.join(named)}{', …' if len(beside) > _NAMED else ''}"
        return line

    def deserted_line(self) -> str:
        """Say that nothing runs on the target, where the CPU beside it has every operator."""
        placed = [p for p in self.placements if p.device]
        if self.target.startswith("llvm") or {p.device for p in placed} != {"llvm"}:
            return ""
        by_cost = any(p.reason.startswith("by cost") for p in placed)
        advice = ", which is faster by cost (fallback='list' keeps them there)" if by_cost else ""
        return f"nothing runs on {self.target.split()[0]}, all on the CPU{advice}"

    def fusion_line(self) -> str:
        """One line, as ``2 groups of 5 kernels merged, 1 refused``."""
        taken = [group for group in self.fusion_groups if group["taken"]]
        members = sum(len(group["kernels"]) for group in taken)
        refused = len(self.fusion_groups) - len(taken)
        merged = (
            f"{_number(len(taken), 'group')} of {members} kernels merged"
            if taken
            else "none merged"
        )
        return f"{merged}, {refused} refused" if refused else merged


def read_kernels(rows: Sequence[dict[str, Any]]) -> tuple[KernelInfo, ...]:
    """Return the kernels of a report as :func:`dataclasses.asdict` wrote them."""
    return tuple(KernelInfo(**{**k, "operators": tuple(k["operators"])}) for k in rows)


def _number(count: int, what: str, plural: str = "") -> str:
    return f"{count} {what if count == 1 else plural or what + 's'}"
