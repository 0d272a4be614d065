"""What a compilation decided: where each operator runs, in which kernel, with which memory."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvm_edge.errors import InputError
from tvm_edge.report.layouts import LayoutsInfo
from tvm_edge.report.measured import Measured
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

__all__ = ["CompileReport", "KernelInfo", "Launches", "ModelAlone", "Placement"]


# What to_dict adds for those who read it, and from_dict works out again.
_DERIVED = ("flops", "operator_types", "flops_distribution")

_NAMED = 6  # types of operators on the CPU in a line


@dataclass(frozen=True)
class Placement:
    """Where one operator of the user's model runs.

    Attributes
    ----------
    operator, op_type : str
        Name and type in the model.
    device : str
        ``"llvm"``, ``"opencl"``, …; empty for an operator that vanished at compile time.
    reason : str
        Why there.
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
        Where its schedule came from.
    rule : str
        The schedule rule.
    flops : float
        Arithmetic operations of a run, a multiply-add counted as two: those of its operators'
        definitions (:class:`~tvm_edge.report.OperatorInfo`). An operator computed by several
        kernels is shared out by their loops. Where a definition does not say, the number of the
        kernel's own loops; 0 where shapes are dynamic.
    bytes : int
        Bytes of its arguments, each counted once: the traffic that no schedule avoids.
    weights, results, workspace : int
        Bytes of its constants as stored, of what it writes, and of its scratch space.
    streamed : int
        Of `weights` those that every run reads from the artifact.
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
    """What runs launch, of code that a report does not describe.

    Attributes
    ----------
    kernels : tuple[KernelInfo, ...]
        Of a run of everything.
    alone : tuple[tuple[KernelInfo, ...], ...]
        Of each of several models by itself.
    """

    kernels: tuple[KernelInfo, ...]
    alone: tuple[tuple[KernelInfo, ...], ...] = ()

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Launches:
        """The inverse of :func:`dataclasses.asdict`."""
        return cls(_kernels(fields["kernels"]), tuple(map(_kernels, fields["alone"])))


@dataclass(frozen=True)
class ModelAlone:
    """What one of several models takes where it runs alone.

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
class CompileReport:
    """What a compilation decided, readable by people (:meth:`summary`) and programs.

    Attributes
    ----------
    model, target : str
    placements : tuple[Placement, ...]
        One per operator of the model.
    partitions : tuple[tuple[str, int], ...]
        Device and number of kernels of each maximal run on one device.
    copies : tuple[dict, ...]
        Tensors that cross devices: ``tensor``, ``shape``, ``dtype``, ``source``, ``destination``,
        ``bytes`` (its size), ``zero_copy``: the devices share memory, and nothing is copied, and
        ``overlapped``: the GPU has other work meanwhile.
    fusion_groups : tuple[dict, ...]
        Independent kernels that are one launch, and the best of those that are not: ``operators``,
        ``kernels`` (by their own names), ``taken``, ``reason``, and the predicted microseconds
        ``apart_us`` and ``merged_us``, ``None`` where nothing can be said. What was merged because
        the user asked for it may be predicted to lose.
    kernels : tuple[KernelInfo, ...]
        In execution order.
    layouts : dict[str, str]
        By convolution the layout of its images, where it is not the model's own, and Winograd's
        algorithm where it is computed by that.
    memory : MemoryInfo or None
        ``None`` of a model with unsupported operators, for which no plan can be made.
    operators : tuple[OperatorInfo, ...]
        What each operator of the model takes, in the order of `placements`.
    unsupported : tuple[UnsupportedInfo, ...]
        Operators without an implementation; only :func:`tvm_edge.analyze` returns such a report,
        and :func:`tvm_edge.compile` raises.
    precision : PrecisionInfo or None
        Of ``precision="float16"`` and ``"mixed"``: which operators run in which type.
    records : RecordsInfo or None
        How many convolutions have their configuration from tuning records, and which records were
        ignored; ``None`` where none were asked for, or none can say anything.
    layout_choice : LayoutsInfo or None
        What ``tune(…, graph=True)`` chose for the whole network; ``None`` where nobody did, and
        `layouts` are by estimates.
    models : tuple[ModelAlone, ...]
        Of a dict of several models what each takes where it runs alone. All else is of a run of all
        of them; `memory` has the activations of whichever needs more.
    splits : tuple[SplitInfo, ...]
        Layers whose weights every run reads from the artifact: ``"streamed"`` in the
        `weights_by_device` of `memory`.
    warnings : tuple[str, ...]
    seconds : dict[str, float]
        Time of each compiler phase.
    """

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
        """How the work is spread over operators, or over kernels (EMDL'21, Figure 2).

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
        """The tensors that cross devices by a copy."""
        # Artifacts of earlier versions do not say it.
        return tuple(copy for copy in self.copies if not copy.get("zero_copy"))

    def placement_line(self) -> str:
        """One line: operators on the device, partitions, copies, and what runs on the CPU.

        Examples
        --------
        ``llvm 122/122 operators, 1 partition, 0 copies``

        ``opencl 121/122 operators, 3 partitions, 3 copies, 96 KiB; CPU: NonMaxSuppression ×1``
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
            parts.append(f"{_number(shared, 'crossing')} in shared memory")
        line = ", ".join(parts)
        if beside:
            named = [f"{op_type} ×{count}" for op_type, count in beside.most_common(_NAMED)]
            line += f"; CPU: {', '.join(named)}{', …' if len(beside) > _NAMED else ''}"
        return line

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

    def summary(self) -> str:
        """A page of text: placement, kernels, memory, warnings, unsupported operators."""
        from tvm_edge.report.text import summary

        return summary(self)

    def to_html(self, path: str | os.PathLike[str], profile: Measured | None = None) -> Path:
        """Write the report as one page that needs nothing else, and return its path.

        Parameters
        ----------
        path : path
        profile : Profile, optional
            Of the same model: ``model.profile()``. Without one the page has shares of FLOPs and
            bytes in place of times.

        Raises
        ------
        InputError
            The file cannot be written, or the profile is of another model.
        """
        from tvm_edge.report.page import page

        target = Path(path)
        try:
            target.write_text(page(self, profile), encoding="utf-8")
        except OSError as err:
            raise InputError(
                f"cannot write the report to {str(target)!r}: {err.strerror}; choose another path",
                name="path",
                got=str(target),
            ) from err
        return target

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary; :meth:`from_dict` reads it back."""
        fields = asdict(self)
        if self.memory is not None:
            fields["memory"]["peak"] = self.memory.peak
        for model, own in zip(self.models, fields["models"], strict=True):
            own["memory"]["peak"] = model.memory.peak
        fields["flops"] = self.flops
        fields["operator_types"] = [asdict(row) for row in self.operator_types()]
        fields["flops_distribution"] = {
            of: asdict(self.flops_distribution(of)) for of in ("operators", "kernels")
        }
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> CompileReport:
        """The inverse of :meth:`to_dict`."""
        stored = {key: value for key, value in fields.items() if key not in _DERIVED}
        memory = fields["memory"]
        precision, records = fields.get("precision"), fields.get("records")
        choice = fields.get("layout_choice")
        return cls(
            **{
                **stored,
                "placements": tuple(Placement(**p) for p in fields["placements"]),
                "kernels": _kernels(fields["kernels"]),
                "memory": MemoryInfo.from_dict(memory) if memory else None,
                "partitions": tuple((d, n) for d, n in fields["partitions"]),
                "copies": tuple(fields["copies"]),
                "fusion_groups": tuple(fields["fusion_groups"]),
                "warnings": tuple(fields["warnings"]),
                # Artifacts of earlier versions do not have these.
                "precision": PrecisionInfo(**precision) if precision else None,
                "layout_choice": LayoutsInfo.from_dict(choice) if choice else None,
                "models": tuple(
                    ModelAlone(m["name"], _kernels(m["kernels"]), MemoryInfo.from_dict(m["memory"]))
                    for m in fields.get("models", ())
                ),
                "splits": tuple(SplitInfo(**split) for split in fields.get("splits", ())),
                "records": RecordsInfo(**{**records, "ignored": tuple(records["ignored"])})
                if records
                else None,
                "operators": tuple(
                    OperatorInfo(**{**o, "inputs": tuple(o.get("inputs", ()))})
                    for o in fields.get("operators", ())
                ),
                "unsupported": tuple(
                    UnsupportedInfo(**{**u, "operators": tuple(u["operators"])})
                    for u in fields.get("unsupported", ())
                ),
            }
        )


def _kernels(rows: Sequence[dict[str, Any]]) -> tuple[KernelInfo, ...]:
    return tuple(KernelInfo(**{**k, "operators": tuple(k["operators"])}) for k in rows)


def _number(count: int, what: str, plural: str = "") -> str:
    return f"{count} {what if count == 1 else plural or what + 's'}"
