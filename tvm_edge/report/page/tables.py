"""The tables of the page: what is in their columns, as text that is ready to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm_edge.report.page import units

if TYPE_CHECKING:
    from tvm_edge.report.decisions import Decisions
    from tvm_edge.report.measured import Measured
    from tvm_edge.report.operators import OperatorInfo, OperatorTypeInfo

__all__ = ["Column", "Table", "copies", "kernels", "layouts", "operators", "origins", "types"]

ORIGINS = {
    "tuned": "measured on this device",
    "transferred": "measured on a similar device",
    "heuristic": "by rule from what is known of the device",
    "fallback": "a plain schedule that is always right",
}


@dataclass(frozen=True)
class Column:
    """A heading, and whether numbers stand below it."""

    name: str
    number: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes
    ----------
    key : str
        Its ``id``.
    caption : str
    columns : sequence of Column
    rows : list of sequence of str
    heading : int
        The column that names a row.
    sortable : bool
        By any column; and rows may be filtered by a text.
    """

    key: str
    caption: str
    columns: Sequence[Column]
    rows: list[Sequence[str]] = field(default_factory=list)
    heading: int = 0
    sortable: bool = False


def _columns(texts: str, numbers: str = "") -> list[Column]:
    return [
        *(Column(name.strip()) for name in texts.split(",")),
        *(Column(name.strip(), True) for name in numbers.split(",") if name),
    ]


def kernels(report: Decisions, profile: Measured | None) -> Table:
    """The launches, with measured times or else shares of what is known."""
    work = sum(kernel.flops for kernel in report.kernels)
    traffic = sum(kernel.bytes for kernel in report.kernels)
    columns = _columns("Kernel, Operators, Device, Origin, Rule", "MFLOP,KiB")
    if profile is None:
        columns += _columns("", "% of FLOPs,% of bytes")[1:]
    else:
        columns += _columns("", "µs,% of run,GFLOP/s,GB/s")[1:]
    rows: list[Sequence[str]] = []
    for index, kernel in enumerate(report.kernels):
        row = [
            str(index + 1),
            kernel.name,
            ", ".join(kernel.operators),
            kernel.device,
            kernel.origin,
            kernel.rule,
            units.decimals(kernel.flops, 3, 1e6),
            units.decimals(kernel.bytes, 1, 1024),
        ]
        if profile is None:
            row.append(units.decimals(100 * kernel.flops / (work or 1), 1))
            row.append(units.decimals(100 * kernel.bytes / (traffic or 1), 1))
        else:
            time = profile.kernels[index]
            row.append(units.decimals(time.time_us, 1))
            row.append(units.decimals(100 * time.share, 1))
            row.append(units.decimals(time.gflops, 1))
            row.append(units.decimals(time.gbs, 1))
        rows.append(row)
    return Table(
        "kernels-table",
        "Kernel launches in the order of a run",
        [Column("#", True), *columns],
        rows,
        heading=1,
        sortable=True,
    )


def origins(report: Decisions, profile: Measured | None) -> Table:
    """Count kernels by the origin of their schedule; tuning hits are those of the first two."""
    table = Table(
        "origins-table",
        "Where schedules came from",
        _columns("Origin, Meaning", "launches,% of FLOPs" + (",% of run" if profile else "")),
    )
    work = sum(kernel.flops for kernel in report.kernels)
    found = dict.fromkeys([*ORIGINS, *(kernel.origin for kernel in report.kernels)])
    for origin in found:
        own = [i for i, kernel in enumerate(report.kernels) if kernel.origin == origin]
        flops = sum(report.kernels[i].flops for i in own)
        row = [origin, ORIGINS.get(origin, ""), units.count(len(own))]
        row.append(units.decimals(100 * flops / (work or 1), 1))
        if profile is not None:
            row.append(units.decimals(100 * sum(profile.kernels[i].share for i in own), 1))
        table.rows.append(row)
    return table


def operators(report: Decisions) -> Table:
    """Each operator of the model."""
    return Table(
        "operators-table",
        "Operators of the model",
        _columns(
            "Operator, Type, Device, Why",
            "MFLOP,parameters,weights KiB,in KiB,out KiB",
        ),
        [
            (
                o.name,
                o.op_type,
                o.device or units.NOTHING,
                o.reason,
                units.decimals(o.flops, 3, 1e6),
                *_sizes(o),
            )
            for o in report.operators
        ],
        sortable=True,
    )


def types(report: Decisions) -> Table:
    """Operators added up by type."""
    return Table(
        "types-table",
        "Operators by type",
        _columns("Type", "count,MFLOP,% of FLOPs,parameters,weights KiB,in KiB,out KiB"),
        [
            (
                row.op_type,
                units.count(row.count),
                units.decimals(row.flops, 3, 1e6),
                units.decimals(100 * row.share, 1),
                *_sizes(row),
            )
            for row in report.operator_types()
        ],
        sortable=True,
    )


def _sizes(row: OperatorInfo | OperatorTypeInfo) -> tuple[str, ...]:
    """Parameters, and KiB of weights, inputs and outputs."""
    return (
        units.count(row.parameters),
        units.decimals(row.weight_bytes, 1, 1024),
        units.decimals(row.input_bytes, 1, 1024),
        units.decimals(row.output_bytes, 1, 1024),
    )


def copies(report: Decisions) -> Table:
    """Tensors passed between devices."""
    return Table(
        "copies-table",
        "Tensors that cross devices",
        _columns("Tensor, Shape, Type, From, To, How", "KiB,KiB copied"),
        [
            (
                copy["tensor"],
                " × ".join(str(dim) for dim in copy["shape"]),
                copy["dtype"],
                copy["source"],
                copy["destination"],
                _how(copy),
                # 0 is what only the run sizes.
                units.decimals(copy["bytes"] or None, 1, 1024),
                "0.0" if copy.get("zero_copy") else units.decimals(copy["bytes"] or None, 1, 1024),
            )
            for copy in report.copies
        ],
        sortable=len(report.copies) > 1,
    )


def _how(copy: Mapping[str, Any]) -> str:
    """Say how a tensor gets to another device."""
    way = "shared memory" if copy.get("zero_copy") else "copy"
    # Artifacts of earlier versions do not say it.
    return f"{way}, beside work of the GPU" if copy.get("overlapped") else way


def fusion_groups(report: Decisions) -> Table:
    """Independent operators that share a kernel, and those that might have; keys as they come."""
    keys = list(dict.fromkeys(key for group in report.fusion_groups for key in group))
    return Table(
        "fusion-table",
        "Groups that were considered",
        [Column(key.replace("_", " ")) for key in keys],
        [[_text(group.get(key)) for key in keys] for group in report.fusion_groups],
    )


def _text(value: object) -> str:
    if value is None:
        return units.NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def precision(report: Decisions) -> Table:
    """The type of each operator with float results, and why not the lower one."""
    info = report.precision
    return Table(
        "precision-table",
        "Types of operators with float results",
        _columns("Operator, Type, Why float32"),
        []
        if info is None
        else [(name, dtype, info.reasons.get(name, "")) for name, dtype in info.operators.items()],
        sortable=True,
    )


def layouts(report: Decisions) -> Table:
    """Layout and algorithm of convolutions, where they are not the model's own."""
    return Table(
        "layouts-table",
        "Convolutions stored or computed in another way than the model's",
        _columns("Convolution, Layout and algorithm"),
        list(report.layouts.items()),
        sortable=True,
    )


def unsupported(report: Decisions) -> Table:
    """Operators without an implementation."""
    return Table(
        "unsupported-table",
        "Operators without an implementation",
        _columns("Operator, Nodes, Reason"),
        [(u.op_type, ", ".join(u.operators), u.reason) for u in report.unsupported],
    )


def memory(report: Decisions) -> Table:
    """Planned memory, part by part."""
    rows: list[Sequence[str]] = []
    info = report.memory
    if info is not None:
        parts = {
            "weights": info.weights,
            "of them mapped from the artifact": info.mapped,
            "window for streamed weights": info.window,
            "rounding of blocks on the device": info.rounding,
            "activations": info.activations,
            **{f"activations on {name}": size for name, size in info.by_device.items()},
            "workspace": info.workspace,
            "inputs and outputs": info.inputs_outputs,
            "programs": info.programs,
            "process without a model": info.floor,
            "peak": info.peak,
            "budget": info.budget,
        }
        rows = [
            (name, units.size(size) if size is not None else "none", units.count(size))
            for name, size in parts.items()
        ]
    return Table(
        "memory-table", "Memory of a run, as planned", _columns("Part", "size,bytes"), rows
    )


def plans(report: Decisions) -> Table:
    """Plans that the planner of a memory budget considered."""
    found = () if report.memory is None else report.memory.plans
    return Table(
        "plans-table",
        "Plans for the memory budget",
        _columns("Plan, Taken, Why, Time is bound by", "peak MiB,ms"),
        [
            (
                plan.name,
                "yes" if plan.taken else "no",
                plan.reason,
                plan.bound or units.NOTHING,
                units.decimals(plan.peak, 1, 2**20),
                units.decimals(plan.seconds, 2, 1e-3),
            )
            for plan in found
        ],
    )


def splits(report: Decisions) -> Table:
    """Layers whose weights are streamed."""
    return Table(
        "splits-table",
        "Layers with streamed weights",
        _columns("Operator, Device, Cut along", "parts,weights MiB,MiB at a time"),
        [
            (
                split.operator,
                split.device,
                split.along or "one piece",
                units.count(split.parts),
                units.decimals(split.weight_bytes, 1, 2**20),
                units.decimals(split.window, 1, 2**20),
            )
            for split in report.splits
        ],
    )


def compile_time(report: Decisions) -> Table:
    """Seconds of each phase of the compiler."""
    total = sum(report.seconds.values())
    rows: list[Sequence[str]] = [
        (phase, f"{seconds:.2f}") for phase, seconds in report.seconds.items()
    ]
    if rows:
        rows.append(("total", f"{total:.2f}"))
    return Table("seconds-table", "Phases of the compiler", _columns("Phase", "seconds"), rows)
