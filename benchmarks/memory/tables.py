"""Tables of ``benchmarks.memory.networks``, with the bars beside the figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["line", "written"]

_TOLERANCE = 0.1
# Of the paper, section 5: GB, and the share of the fully connected layers.
_PAPER = {"yolov1": "2.8 GB, 80 %", "vgg19": "1.34 GB, 86 %", "vgg16": "1.24 GB, 89 %"}
_COLUMNS = ("as is", "split", "offload", "pipeline", "streamed")


def written(result: dict[str, Any]) -> str:
    """All that was measured, as Markdown."""
    parts = []
    if "floor" in result:
        names = ("target", "process_mib", "kernel_kib", "device_mib")
        rows = [[row.get(n, row.get("failed", "")) for n in names] for row in result["floor"]]
        parts.append(_table("target, process MiB, a kernel KiB, of it on the device MiB", rows))
    if "budgets" in result:
        head = (
            "network, target, budget, plan, predicted MiB, measured MiB, measured / predicted, "
            "cold MiB, within the budget, right, a frame ms, first frame ms, "
            "in a limit of the budget, without a plan there"
        )
        parts.append(_table(head, map(_budget, result["budgets"])))
    if "strategies" in result:
        rows = result["strategies"]
        parts += [_summary(rows, memory) for memory in dict.fromkeys(r["memory"] for r in rows)]
        head = (
            "network, target, memory, strategy, predicted MiB, measured MiB, measured / predicted, "
            "cold MiB, right, a frame ms, first frame ms, frames, J a frame"
        )
        parts.append(_table(head, map(_strategy, rows)))
    if "layers" in result:
        rows = [
            [
                row["network"],
                row["convolutions"],
                f"{row['total_gib']:.2f}",
                f"{row['fc_share']:.0%}",
                _PAPER.get(row["network"], ""),
            ]
            for row in result["layers"]
        ]
        head = "network, convolutions, memory GiB, fully connected layers' share, the paper's"
        parts.append(_table(head, rows))
    failed = [f"- {name}: {why}" for name, why in result.get("failed", {}).items()]
    return "\n\n".join(["", *parts, *failed])


def line(row: dict[str, Any]) -> str:
    """One row as it is measured."""
    strategy = f"{row['memory']}, {row['strategy']}" if "strategy" in row else row["budget"]
    cells = _strategy(row)[4:] if "strategy" in row else _budget(row)[3:]
    return f"{row['network']} {row['target']} {strategy}: " + "; ".join(map(str, cells))


def _budget(row: dict[str, Any]) -> list[str]:
    compiled, run = row["compiled"], row.get("run", {})
    limits = [_lives(row.get(key)) for key in ("limited", "unplanned_limited")]
    who = [row["network"], row["target"], row["budget"]]
    if "predicted" not in compiled:
        return [*who, _why_not(compiled), *[""] * 8, *limits]
    taken = next((plan["name"] for plan in compiled["plans"] if plan["taken"]), "as is")
    fits = ""
    if "budget_bytes" in row:
        fits = _bar(run["peak"] <= row["budget_bytes"])
    times = _times(run)
    return [*who, taken, *_peaks(row), fits, _right(run), *times, *limits]


def _strategy(row: dict[str, Any]) -> list[str]:
    compiled, run = row["compiled"], row.get("run", {})
    who = [row["network"], row["target"], row["memory"], row["strategy"]]
    if "predicted" not in compiled:
        return [*who, _why_not(compiled), *[""] * 8]
    joules = run.get("joules", "")
    energy = f"{joules:.2f}" if isinstance(joules, float) else joules
    frames = str(run.get("frames", ""))
    return [*who, *_peaks(row), _right(run), *_times(run), frames, energy]


def _summary(rows: Sequence[dict[str, Any]], memory: str) -> str:
    """Strategies of a network beside each other, as in the paper's Tables 1 and 2."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row["memory"] == memory:
            run = row.get("run", {})
            cell = f"{run['seconds'] * 1e3:.0f} ({_mib(run['peak'])})" if "seconds" in run else "–"
            found.setdefault((row["network"], row["target"]), {})[row["strategy"]] = cell
    cells = [[*who, *(own.get(column, "") for column in _COLUMNS)] for who, own in found.items()]
    title = f"A frame in ms (and the peak in MiB), {memory} memory:"
    return f"{title}\n\n" + _table(f"network, target, {', '.join(_COLUMNS)}", cells)


def _peaks(row: dict[str, Any]) -> list[str]:
    predicted, peak = row["compiled"]["predicted"], row["run"]["peak"]
    ratio = peak / predicted
    bar = _bar(abs(ratio - 1) <= _TOLERANCE)
    cold = _mib(row["cold"]["peak"]) if row.get("cold") else ""
    return [_mib(predicted), _mib(peak), f"{ratio:.2f} {bar}", cold]


def _times(run: dict[str, Any]) -> list[str]:
    if "failed" in run:
        return [f"**{run['failed'][:60]}**", ""]
    return [f"{run['seconds'] * 1e3:.1f}", f"{run['first_seconds'] * 1e3:.0f}"]


def _right(run: dict[str, Any]) -> str:
    check = run.get("check", {})
    return f"{check['error']:.0e} {_bar(check['right'])}" if "right" in check else _bar(False)


def _lives(run: dict[str, Any] | None) -> str:
    if run is None:
        return ""
    if "failed" in run:
        return f"fails ({run['limit']})"
    return f"lives, {run['seconds'] * 1e3:.0f} ms ({run['limit']})"


def _why_not(compiled: dict[str, Any]) -> str:
    if "smallest" in compiled:
        return f"does not fit: {_mib(compiled['smallest'])} MiB would"
    return str(compiled.get("missing") or f"**{compiled.get('failed')}**")


def _bar(met: bool) -> str:
    return "met" if met else "**missed**"


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.0f}"


def _table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    names = head.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
