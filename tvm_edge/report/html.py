"""A report as one HTML page without scripts, fonts or anything else from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_edge.report.compile_report import CompileReport

__all__ = ["page"]

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; margin: .5em 0 2em }
th, td { padding: .15em .8em .15em 0; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #888 }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.bar { background: #4878a8; height: .8em; margin-top: .3em }
.unsupported { border-left: 4px solid #b03030; padding-left: 1em }
"""

Cell = str | int | float | None


def page(report: CompileReport) -> str:
    """The whole document; names from the model are escaped."""
    title = escape(f"{report.model} on {report.target}")
    sections = [
        _unsupported(report),
        _overview(report),
        _types(report),
        _distribution(report),
        _operators(report),
        _kernels(report),
        _copies(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n{''.join(sections)}</body>\n</html>\n"
    )


def _unsupported(report: CompileReport) -> str:
    if not report.unsupported:
        return ""
    rows = [(u.op_type, ", ".join(u.operators), u.reason) for u in report.unsupported]
    table = _table("Unsupported operators", ("operator", "nodes", "reason"), rows)
    return f'<div class="unsupported">{table}</div>\n'


def _overview(report: CompileReport) -> str:
    rows: list[tuple[Cell, ...]] = []
    if not report.unsupported:
        rows.append(("placement", report.placement_line()))
    rows.append(("FLOPs", f"{report.flops:,.0f}"))
    if report.memory is not None:
        memory = report.memory
        for name in ("peak", "weights", "activations", "workspace", "inputs_outputs"):
            rows.append((f"memory: {name.replace('_', ', ')}", f"{getattr(memory, name):,} bytes"))
    rows += [(f"seconds: {phase}", f"{seconds:.2f}") for phase, seconds in report.seconds.items()]
    rows += [("warning", warning) for warning in report.warnings]
    return _table("Overview", ("", ""), rows)


def _types(report: CompileReport) -> str:
    rows = [
        (
            row.op_type,
            row.count,
            row.flops,
            f"{row.share:.1%}",
            row.parameters,
            row.weight_bytes,
            row.input_bytes,
            row.output_bytes,
        )
        for row in report.operator_types()
    ]
    columns = ("type", "count", "FLOPs", "share", "parameters", "weight bytes", "bytes in")
    return _table("Operators by type", (*columns, "bytes out"), rows)


def _distribution(report: CompileReport) -> str:
    """Bars, as in Figure 2 of EMDL'21."""
    spread = report.flops_distribution()
    most = max(b.count for b in spread.bins) or 1
    rows = "".join(
        f'<tr><td class="number">{b.low / 1e6:g} – '
        f"{'…' if b.high is None else f'{b.high / 1e6:g}'}</td>"
        f'<td class="number">{b.count}</td>'
        f'<td style="width: 20em"><div class="bar" style="width: {b.count / most:.1%}"></div></td>'
        f'<td class="number">{b.flops / spread.flops if spread.flops else 0:.1%}</td></tr>\n'
        for b in spread.bins
    )
    return (
        "<h2>Distribution of FLOPs</h2>\n<table>\n<tr><th>MFLOP</th><th>operators</th><th></th>"
        f"<th>of FLOPs</th></tr>\n{rows}</table>\n"
    )


def _operators(report: CompileReport) -> str:
    rows = [
        (
            o.name,
            o.op_type,
            o.device,
            o.reason,
            o.flops,
            o.parameters,
            o.weight_bytes,
            o.input_bytes,
            o.output_bytes,
        )
        for o in report.operators
    ]
    columns = ("operator", "type", "device", "why", "FLOPs", "parameters", "weight bytes")
    return _table("Operators", (*columns, "bytes in", "bytes out"), rows)


def _kernels(report: CompileReport) -> str:
    rows = [
        (k.name, ", ".join(k.operators), k.device, f"{k.origin}: {k.rule}", round(k.flops), k.bytes)
        for k in report.kernels
    ]
    return _table("Kernels", ("kernel", "operators", "device", "origin", "FLOPs", "bytes"), rows)


def _copies(report: CompileReport) -> str:
    columns = ("tensor", "shape", "dtype", "source", "destination", "bytes")
    rows = [
        tuple(str(copy[c]) if c == "shape" else copy[c] for c in columns) for copy in report.copies
    ]
    return _table("Copies between devices", columns, rows)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A heading and a table; nothing if there are no rows."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    if not body:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    head = f"<tr>{head}</tr>\n" if any(columns) else ""
    return f"<h2>{escape(title)}</h2>\n<table>\n{head}{body}</table>\n"


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return f'<td class="number">{"–" if value is None else f"{value:,}"}</td>'
