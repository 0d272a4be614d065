"""Reports as text: what the command line prints."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tvm_edge.report.decisions import Decisions, KernelInfo
    from tvm_edge.report.memory import MemoryInfo

__all__ = ["analysis", "memory_tables", "summary"]

_WIDTH = 100
_BAR = 30
_LARGEST = 10
_IGNORED = 3  # records of another machine may be hundreds


def summary(report: Decisions) -> str:
    """A page: placement, work, memory, warnings, unsupported operators, the largest kernels."""
    console, out = _console()
    _head(console, report)
    if report.kernels:
        console.print(_kernel_table(report))
    return out.getvalue()


def analysis(report: Decisions, *, all_operators: bool = False) -> str:
    """:func:`summary`, the operators by type (or each), and the distribution of their FLOPs."""
    console, out = _console()
    _head(console, report)
    console.print(_type_table(report))
    console.print()
    if all_operators:
        console.print(_operator_table(report))
        console.print()
    _distribution(console, report)
    if report.kernels:
        console.print()
        console.print(_kernel_table(report))
    return out.getvalue()


def memory_tables(report: Decisions) -> str:
    """Write the memory by device, and the layers that have most of it."""
    console, out = _console()
    _head(console, report)
    if report.memory is not None:
        console.print(_device_table(report.memory))
        console.print()
    if report.kernels:
        console.print(_layer_table(report))
    return out.getvalue()


def _console() -> tuple[Console, io.StringIO]:
    from rich.console import Console

    out = io.StringIO()
    return Console(file=out, width=_WIDTH, no_color=True, highlight=False), out


def _head(console: Console, report: Decisions) -> None:
    from rich.text import Text

    def line(label: str, text: str) -> None:
        console.print(Text(f"{label:<10} {text}"))

    console.print(Text(f"{report.model} on {report.target}"))
    if not report.unsupported:
        line("placement", report.placement_line())
    operators = [o for o in report.operators if not o.constant]
    constant = len(report.operators) - len(operators)
    uncounted = sum(o.flops is None for o in operators)
    line(
        "operators",
        f"{len(operators)}{f' and {constant} constant' if constant else ''}, "
        f"{report.flops / 1e9:.3f} GFLOP{f' without {uncounted} uncounted' if uncounted else ''}, "
        f"{sum(o.parameters for o in operators) / 1e6:.2f} M parameters",
    )
    if report.kernels:
        origins = [kernel.origin for kernel in report.kernels]
        counts = ", ".join(f"{origins.count(o)} {o}" for o in dict.fromkeys(origins))
        line("kernels", f"{len(origins)} launches ({counts})")
    if report.fusion_groups:
        line("fusion", report.fusion_line())
    if report.records is not None:
        line("records", report.records.line())
        ignored = report.records.ignored
        for reason in ignored[:_IGNORED]:
            line("", f"ignored: {reason}")
        if len(ignored) > _IGNORED:
            line("", "ignored: … and more; report.records.ignored and --json name them")
    if report.layout_choice is not None:
        line("layouts", report.layout_choice.line())
        transforms = sorted(report.layout_choice.transforms, key=lambda t: -t.seconds)
        for transform in transforms[:_LARGEST]:
            line("", transform.line())
        if len(transforms) > _LARGEST:
            line("", f"… and {len(transforms) - _LARGEST} more")
    if report.precision is not None:
        line("precision", report.precision.line())
    if report.memory is not None:
        _memory_lines(line, report.memory)
    for model in report.models:
        peak = _mib(model.memory.peak)
        line("alone", f"{model.name}: {len(model.kernels)} launches, {peak} MiB peak")
    for number, split in enumerate(report.splits):
        line("" if number else "streamed", split.line())
    if report.seconds:
        phases = ", ".join(f"{name} {s:.1f}" for name, s in report.seconds.items())
        line("compile", f"{sum(report.seconds.values()):.1f} s ({phases})")
    for warning in report.warnings:
        line("warning", warning)
    if report.unsupported:
        console.print()
        console.print(Text("unsupported operators: this model cannot be compiled"))
        for missing in report.unsupported:
            console.print(Text(f"  {missing.op_type} ×{len(missing.operators)}: {missing.reason}"))
            console.print(Text(f"    {', '.join(missing.operators)}"))
        console.print()


def _memory_lines(line: Callable[[str, str], None], memory: MemoryInfo) -> None:
    devices = ", ".join(f"{name} {_mib(size)}" for name, size in memory.by_device.items())
    mapped = f" and {_mib(memory.mapped)} mapped" if memory.mapped else ""
    own = f", programs {_mib(memory.programs)}, process {_mib(memory.floor)}"
    line(
        "memory",
        f"{_mib(memory.peak)} MiB peak: weights {_mib(memory.weights - memory.mapped)}{mapped}, "
        f"{f'window {_mib(memory.window)}, ' if memory.window else ''}"
        f"{f'rounding {_mib(memory.rounding)}, ' if memory.rounding else ''}"
        f"activations {_mib(memory.activations)}{f' ({devices})' if devices else ''}, "
        f"workspace {_mib(memory.workspace)}, "
        f"inputs and outputs {_mib(memory.inputs_outputs)}{own if memory.floor else ''}",
    )
    if memory.budget is not None:
        line("budget", f"{_mib(memory.budget)} MiB")
    for plan in memory.plans:
        taken = "taken" if plan.taken else "not taken"
        if plan.peak is not None and plan.seconds is not None:
            sizes = f"{_mib(plan.peak)} MiB, {plan.seconds * 1e3:.3g} ms ({plan.bound})"
            line("plan", f"{plan.name}: {sizes}; {taken}: {plan.reason}")
        else:
            line("plan", f"{plan.name}: {plan.reason}")


def _table(title: str, columns: Iterable[tuple[str, int | None, bool]]) -> Table:
    """A table without lines; a column is its name, its largest width and whether it is numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name, width, number in columns:
        table.add_column(
            name,
            overflow="ellipsis",
            no_wrap=True,
            max_width=width,
            justify="right" if number else "left",
        )
    return table


def _numbers(*names: str) -> list[tuple[str, int | None, bool]]:
    return [(name, None, True) for name in names]


def _row(table: Table, texts: Sequence[str]) -> None:
    from rich.text import Text

    table.add_row(*(Text(text) for text in texts))  # names may hold rich's markup


def _kernel_table(report: Decisions) -> Table:
    columns = [("kernel", 28, False), ("operators", 34, False), ("origin", None, False)]
    table = _table("largest kernels", [*columns, *_numbers("MFLOP", "KiB")])
    for kernel in sorted(report.kernels, key=lambda k: -k.flops)[:_LARGEST]:
        operators = ", ".join(kernel.operators)
        origin = f"{kernel.origin}: {kernel.rule}"
        _row(table, (kernel.name, operators, origin, _mega(kernel.flops), _kib(kernel.bytes)))
    return table


def _device_table(memory: MemoryInfo) -> Table:
    """A row for each device; `mapped` says how much of the weights is in no memory."""
    columns: list[Any] = [
        ("device", None, False),
        *_numbers("weights MiB", "mapped MiB", "activations MiB"),
    ]
    table = _table("memory by device", columns)
    for device, weights in memory.weights_by_device.items():
        activations = memory.by_device.get(device, 0) if memory.by_device else memory.activations
        _row(table, (device, _mib(weights), _mib(activations)))
    return table


def _layer_table(report: Decisions) -> Table:
    """The kernels with the most bytes of weights, results and scratch space."""
    columns: list[Any] = [("operators", 40, False), ("device", None, False)]
    numbers = _numbers("weights MiB", "results MiB", "workspace MiB", "share")
    table = _table("layers that take the most memory", [*columns, *numbers])

    def size(kernel: KernelInfo) -> int:
        return kernel.weights + kernel.results + kernel.workspace

    total = sum(map(size, report.kernels)) or 1
    for kernel in sorted(report.kernels, key=size, reverse=True)[:_LARGEST]:
        parts = (kernel.weights, kernel.results, kernel.workspace)
        operators = ", ".join(kernel.operators) or kernel.name
        _row(table, (operators, kernel.device, *map(_mib, parts), f"{size(kernel) / total:.1%}"))
    return table


def _type_table(report: Decisions) -> Table:
    columns = _numbers("count", "MFLOP", "share", "parameters", "weights KiB", "in KiB", "out KiB")
    table = _table("operators by type", [("type", 30, False), *columns])
    for row in report.operator_types():
        sizes = (row.weight_bytes, row.input_bytes, row.output_bytes)
        _row(
            table,
            (
                row.op_type,
                str(row.count),
                _mega(row.flops),
                f"{row.share:.1%}",
                f"{row.parameters:,}",
                *map(_kib, sizes),
            ),
        )
    return table


def _operator_table(report: Decisions) -> Table:
    columns: list[Any] = [("operator", 26, False), ("type", 18, False), ("device", None, False)]
    numbers = _numbers("MFLOP", "parameters", "weights KiB", "in KiB", "out KiB")
    table = _table("operators", [*columns, *numbers])
    for o in report.operators:
        sizes = (o.weight_bytes, o.input_bytes, o.output_bytes)
        count = f"{o.parameters:,}"
        _row(
            table,
            (o.name, o.op_type, o.device or "–", _mega(o.flops), count, *map(_kib, sizes)),
        )
    return table


def _distribution(console: Console, report: Decisions) -> None:
    """Bars over ranges of FLOPs, as Figure 2 of EMDL'21 spreads operators by complexity."""
    from rich.bar import Bar
    from rich.text import Text

    operators, kernels = (report.flops_distribution(of) for of in ("operators", "kernels"))
    columns = [("MFLOP", None, True), ("operators", None, True), ("", _BAR, False)]
    table = _table("distribution of FLOPs", [*columns, *_numbers("of FLOPs", "kernels")])
    most = max(b.count for b in operators.bins) or 1
    for b, fused in zip(operators.bins, kernels.bins, strict=True):
        table.add_row(
            f"{b.low / 1e6:g} – {'…' if b.high is None else f'{b.high / 1e6:g}'}",
            str(b.count),
            Bar(most, 0, b.count, width=_BAR),
            f"{b.flops / operators.flops if operators.flops else 0:.1%}",
            str(fused.count) if report.kernels else "–",
        )
    console.print(table)
    for spread in (operators, kernels) if report.kernels else (operators,):
        console.print(
            Text(
                f"{spread.under_5_mflop:.0%} of the {spread.of} are under 5 MFLOP, "
                f"{spread.at_most_1_percent:.0%} take 1 % of the model or less"
            )
        )


def _mega(flops: float | None) -> str:
    if flops is None:
        return "–"
    return f"{flops / 1e6:.{1 if flops >= 1e8 else 3}f}"


def _kib(size: int | None) -> str:
    return "–" if size is None else f"{size / 1024:.0f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"
