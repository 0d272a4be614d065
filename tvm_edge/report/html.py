"""A report as one HTML page; the page itself is ``page.html.j2``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_edge.report.compile_report import CompileReport

__all__ = ["page"]

_TEMPLATE = Path(__file__).with_name("page.html.j2")


def page(report: CompileReport) -> str:
    """The whole document; names from the model are escaped."""
    from jinja2 import Environment

    template = Environment(autoescape=True).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    spread = report.flops_distribution()
    return template.render(
        report=report,
        unsupported=[(u.op_type, ", ".join(u.operators), u.reason) for u in report.unsupported],
        overview=_overview(report),
        types=[
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
        ],
        spread=spread,
        most=max(b.count for b in spread.bins) or 1,
        operators=[
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
        ],
        kernels=[
            (
                k.name,
                ", ".join(k.operators),
                k.device,
                f"{k.origin}: {k.rule}",
                round(k.flops),
                k.bytes,
            )
            for k in report.kernels
        ],
        copies=[
            (
                c["tensor"],
                str(c["shape"]),
                c["dtype"],
                c["source"],
                c["destination"],
                c["bytes"],
                0 if c.get("zero_copy") else c["bytes"],
            )
            for c in report.copies
        ],
    )


def _overview(report: CompileReport) -> list[tuple[Any, ...]]:
    rows = []
    if not report.unsupported:
        rows.append(("placement", report.placement_line()))
    rows.append(("FLOPs", f"{report.flops:,.0f}"))
    if report.memory is not None:
        for name in ("peak", "weights", "activations", "workspace", "inputs_outputs"):
            nbytes = getattr(report.memory, name)
            rows.append((f"memory: {name.replace('_', ', ')}", f"{nbytes:,} bytes"))
        for device, nbytes in report.memory.by_device.items():
            rows.append((f"memory: activations on {device}", f"{nbytes:,} bytes"))
    rows += [(f"seconds: {phase}", f"{seconds:.2f}") for phase, seconds in report.seconds.items()]
    rows += [("warning", warning) for warning in report.warnings]
    return rows
