"""A report as one HTML page that needs nothing else: style, script and drawings are inside.

``page.html.j2`` is the page; ``style.css`` and ``script.js`` become part of it. Without scripts all
of it can be read; they sort and filter tables and walk through the graph.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_edge.errors import InputError
from tvm_edge.report.page import tables, timeline, units
from tvm_edge.report.page.devices import device_classes
from tvm_edge.report.page.memory_chart import memory_chart
from tvm_edge.report.page.partitions import flow
from tvm_edge.report.page.placement_graph import placement_graph

if TYPE_CHECKING:
    from tvm_edge.report.decisions import Decisions
    from tvm_edge.report.measured import Measured

__all__ = ["page", "render"]

_FOLDER = Path(__file__).parent

# Letters of a name that stay in one line: by itself in a cell, and among others.
_SHORT, _LISTED = 18, 36


def page(report: Decisions, profile: Measured | None = None) -> str:
    """The whole document; names from the model are escaped.

    Raises
    ------
    InputError
        `profile` is of another model.
    """
    if profile is not None:
        _check(report, profile)
    span = 0.0 if profile is None else timeline.length(profile)
    unit, scale = ("ms", 1e3) if span >= 1e3 else ("µs", 1.0)
    spread = report.flops_distribution()
    return render(
        "page.html.j2",
        report=report,
        profile=profile,
        units=units,
        tables=_tables(report, profile),
        figures=_figures(report, profile),
        devices={name: css for name, css in device_classes(report).items() if name},
        partitions=flow(report, profile),
        graph=placement_graph(report),
        lanes=timeline.estimated(report) if profile is None else timeline.measured(report, profile),
        ticks=timeline.ticks(span / scale, unit),
        chart=memory_chart(report),
        spread=spread,
        most=max(b.count for b in spread.bins) or 1,
        constant=sum(operator.constant for operator in report.operators),
    )


def render(template: str, **values: Any) -> str:
    """Fill a template of this folder, with the style and the script of all pages."""
    style, script = _text("style.css"), _text("script.js")
    # Nothing else runs, and nothing is loaded, whatever a model's names hold.
    hashes = {"style_hash": _hash(style), "script_hash": _hash(script)}
    found = _environment().get_template(template)
    return str(found.render(style=style, script=script, **hashes, **values))


def _check(report: Decisions, profile: Measured) -> None:
    expected, found = ([k.name for k in each.kernels] for each in (report, profile))
    if expected != found:
        raise InputError(
            f"the profile has {len(found)} launches that are not the {len(expected)} of the "
            "report; profile the model that the report is of: "
            "model.report.to_html(path, model.profile())",
            name="profile",
        )


def _tables(report: Decisions, profile: Measured | None) -> dict[str, tables.Table]:
    return {
        "kernels": tables.kernels(report, profile),
        "origins": tables.origins(report, profile),
        "operators": tables.operators(report),
        "types": tables.types(report),
        "copies": tables.copies(report),
        "fusion": tables.fusion_groups(report),
        "precision": tables.precision(report),
        "layouts": tables.layouts(report),
        "unsupported": tables.unsupported(report),
        "memory": tables.memory(report),
        "plans": tables.plans(report),
        "splits": tables.splits(report),
        "seconds": tables.compile_time(report),
    }


def _figures(report: Decisions, profile: Measured | None) -> list[tuple[str, str, str]]:
    """The first things to know: what, how much, and a remark."""
    running = [operator for operator in report.operators if not operator.constant]
    unknown = sum(operator.flops is None for operator in running)
    found: list[tuple[str, str, str]] = []
    if profile is not None:
        inside = sum(kernel.time_us for kernel in profile.kernels)
        outside = units.ratio(max(profile.total_us - inside, 0), profile.total_us)
        found.append(("Time of a run", units.time(profile.total_us), f"{outside} outside kernels"))
    constant = len(report.operators) - len(running)
    remark = f"and {constant} constant" if constant else ""
    found.append(("Operators", units.count(len(running)), remark))
    if report.kernels:
        found.append(("Kernel launches", units.count(len(report.kernels)), ""))
    remark = f"without {unknown} uncounted" if unknown else ""
    found.append(("Work of a run", units.short_flops(report.flops), remark))
    found.append(("Parameters", units.millions(sum(o.parameters for o in running)), ""))
    if report.memory is not None:
        remark = f"weights {units.size(report.memory.weights)}"
        if sized := sum(not kernel.results for kernel in report.kernels):
            remark += f", without {units.plural(sized, 'result')} that the run sizes"
        found.append(("Peak memory", units.size(report.memory.peak), remark))
    return found


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(text: str) -> Any:
    """Text whose lines may break after the slashes and underscores of names.

    Short names do not break, nor names in a list, which break after their commas.
    """
    from markupsafe import Markup, escape

    listed = ", " in text
    parts = []
    for name in text.split(", "):
        safe = str(escape(name))
        if len(name) > (_LISTED if listed else _SHORT):
            safe = re.sub(r"(?<=[\w\])])([/_]+)(?=\w{3})", r"\1<wbr>", safe)
        elif listed and not name.replace("_", "").isalnum():
            safe = f"<span>{safe}</span>"
        parts.append(safe)
    return Markup(", ".join(parts))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
