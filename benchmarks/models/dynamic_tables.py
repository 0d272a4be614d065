"""Tables and verdicts of models with open dimensions, of what their processes measured.

A row is a case: ``compiled`` has what each compilation found, by ``open`` or the shape's number;
``shapes`` the answers of the rounds, by the shape's number and the runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from benchmarks.common.text import met, spread
from benchmarks.models.dynamic_cases import CASES
from benchmarks.models.dynamic_jobs import OPEN, PEERS, RUNTIMES

__all__ = ["BARS", "Bars", "markdown", "summarise", "verdict"]

_TITLES = {OPEN: "open", "fixed": "fixed", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


@dataclass(frozen=True)
class Bars:
    """Limits that the figures are held to.

    Attributes
    ----------
    slower, slowest : float
        Most times of open over fixed: geometric mean, and at worst.
    peer : float
        Least geometric mean of the faster peer's time over ours.
    first_ms : float
        Most milliseconds that a shape's first run takes longer than its second, on the CPU.
    compile, size : float
        Most times of the fixed compilation's seconds and of its artifact's bytes.
    """

    slower: float = 1.15
    slowest: float = 1.35
    peer: float = 1.1
    first_ms: float = 5.0
    compile: float = 2.0
    size: float = 1.3


BARS = Bars()


# ------------------------------------------------------------------ what the rounds come to


def summarise(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures that bars are about: of each case, and ``all`` of all.

    Returns
    -------
    dict
        By case: ``slower``, ``slowest``, ``slowest_at``, ``peer``, ``peer_least``,
        ``peer_least_at``, ``first_ms``, ``first_at``, ``compile``, ``size``, each where it was
        measured; ``right`` and ``shapes``, which count shapes; ``problems``, what was refused or
        wrong.
    """
    rows = list(rows)
    found = {row["case"]: _figures([row]) for row in rows}
    return {**found, "all": _figures(rows)} if rows else {}


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    slower, peers, first, compiled, size = {}, {}, {}, {}, {}
    right = shapes = 0
    problems: list[str] = []
    for row in rows:
        name = row["case"]
        problems += _problems(row)
        shapes += len(row["numbers"])
        ratios = _compile_ratios(row)
        if ratios:
            compiled[name], size[name] = ratios
        for number, answers in row["shapes"].items():
            at = f"{name} {CASES[name].label(int(number))}"
            right += _is_right(answers.get(OPEN, ()))
            ratio = slowdown(answers)
            if ratio is not None:
                slower[at] = ratio
            best = best_peer(answers)
            if best is not None:
                peers[at] = best[1]
            extra = first_extra(answers, int(number))
            if extra is not None:
                first[at] = extra
    figures: dict[str, Any] = {"right": right, "shapes": shapes, "problems": problems}
    if slower:
        figures["slower"] = geometric_mean(slower.values())
        figures["slowest_at"], figures["slowest"] = _extreme(slower)
    if peers:
        figures["peer"] = geometric_mean(peers.values())
        figures["peer_least_at"], figures["peer_least"] = _extreme(peers, least=True)
    if first:
        figures["first_at"], figures["first_ms"] = _extreme(first)
    if compiled:
        figures["compile_at"], figures["compile"] = _extreme(compiled)
        figures["size_at"], figures["size"] = _extreme(size)
    return figures


def _extreme(values: Mapping[str, float], *, least: bool = False) -> tuple[str, float]:
    at = (min if least else max)(values, key=lambda name: values[name])
    return at, values[at]


def _times(answers: Mapping[str, Any], runtime: str) -> list[float]:
    """Medians of the rounds; none where one of them failed."""
    rounds = answers.get(runtime, ())
    return [] if any("failed" in each for each in rounds) else [each["ms"] for each in rounds]


def slowdown(answers: Mapping[str, Any]) -> float | None:
    """The open artifact's time over the fixed one's, at a shape."""
    ours, fixed = _times(answers, OPEN), _times(answers, "fixed")
    return median(ours) / median(fixed) if ours and fixed else None


def best_peer(answers: Mapping[str, Any]) -> tuple[str, float] | None:
    """The faster peer, and its time over the open artifact's, at a shape."""
    ours = _times(answers, OPEN)
    peers = {peer: median(times) for peer in PEERS if (times := _times(answers, peer))}
    if not ours or not peers:
        return None
    best = min(peers, key=lambda peer: peers[peer])
    return best, peers[best] / median(ours)


def first_extra(answers: Mapping[str, Any], number: int) -> float | None:
    """Milliseconds that the first run at a shape took longer; the typical one is run at the load.

    The median of the rounds, each of which is a process of its own.
    """
    if number == 0 or not _times(answers, OPEN):
        return None
    return median(each["first_ms"] - each["second_ms"] for each in answers[OPEN])


def _is_right(rounds: Sequence[Mapping[str, Any]]) -> bool:
    return bool(rounds) and all(each.get("right", False) for each in rounds)


def _compile_ratios(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Seconds and bytes of the open compilation over those for the typical shape."""
    ours, fixed = (row["compiled"].get(which, {"failed": ""}) for which in (OPEN, "0"))
    if "failed" in ours or "failed" in fixed:
        return None
    return (
        ours["compile_seconds"] / fixed["compile_seconds"],
        ours["artifact_bytes"] / fixed["artifact_bytes"],
    )


def _problems(row: Mapping[str, Any]) -> list[str]:
    """List refusals and wrong results, in words."""
    name = row["case"]
    if "failed" in row:
        return [f"{name}: {row['failed']}"]
    found = [
        f"{name}, compilation for {_which(name, which)} shapes: {made['failed']}"
        for which, made in row["compiled"].items()
        if "failed" in made
    ]
    for number, answers in row["shapes"].items():
        at = f"{name} {CASES[name].label(int(number))}"
        for runtime, rounds in answers.items():
            failed = next((each["failed"] for each in rounds if "failed" in each), None)
            wrong = next((each for each in rounds if not each.get("right", True)), None)
            if failed is not None:
                found.append(f"{at} by {runtime}: {failed}")
            elif wrong is not None:
                found.append(f"{at} by {runtime}: wrong, {wrong['detail']}")
    return found


def _which(name: str, which: str) -> str:
    return which if which == OPEN else CASES[name].label(int(which))


# ------------------------------------------------------------------ words


def markdown(row: Mapping[str, Any]) -> str:
    """A table of one case, a line per shape, and what the compilations cost."""
    name = row["case"]
    title = f"**{name}** ({CASES[name].source})"
    if "failed" in row:
        return f"{title}: **refused**, {_plain(row['failed'])}"
    shown = [runtime for runtime in RUNTIMES if runtime in row["runtimes"]]
    head = ["shape", *(f"{_TITLES[runtime]}, ms" for runtime in shown)]
    head += ["open / fixed", "best peer / open", "error", "first run, ms more"]
    lines = [title, "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [_line(row, int(number), shown) for number in row["shapes"]]
    if row["compiled"]:
        lines += ["", _compile_line(row)]
    if "random" in row:
        lines += ["", _random_line(row["random"])]
    return "\n".join(lines)


def _random_line(found: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"Random shapes: **refused**, {_plain(found['failed'])}"
    of = "x".join(map(str, found["shape"] or ()))
    text = f"Random shapes: {found['shapes']}, worst error {found['error']:.1e} at {of}"
    wrong = found["wrong"]
    return text if wrong is None else f"{text}; **wrong** at {'x'.join(map(str, wrong))}"


def _line(row: Mapping[str, Any], number: int, shown: Sequence[str]) -> str:
    answers = row["shapes"][str(number)]
    ratio, best = slowdown(answers), best_peer(answers)
    extra = first_extra(answers, number)
    errors = [each["error"] for each in answers.get(OPEN, ()) if "error" in each]
    cells = [CASES[row["case"]].label(number) + " (typical)" * (number == 0)]
    cells += [_cell(answers.get(runtime, ())) for runtime in shown]
    cells.append("–" if ratio is None else f"**{ratio:.2f}**")
    cells.append("–" if best is None else f"{best[1]:.2f}, {_TITLES[best[0]]}")
    wrong = "" if _is_right(answers.get(OPEN, ())) else " **wrong**"
    cells.append(f"{max(errors):.1e}{wrong}" if errors else "–")
    cells.append("–" if extra is None else f"{extra:.2f}")
    return f"| {' | '.join(cells)} |"


def _cell(rounds: Sequence[Mapping[str, Any]]) -> str:
    failed = next((each["failed"] for each in rounds if "failed" in each), None)
    if failed is not None:
        return f"**refused**: {_plain(failed)}"
    return spread([each["ms"] for each in rounds], ".4g")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def _compile_line(row: Mapping[str, Any]) -> str:
    said = []
    for which, title in ((OPEN, "open"), ("0", "fixed")):
        made = row["compiled"].get(which)
        if made is None:
            continue
        if "failed" in made:
            said.append(f"{title} **refused**: {_plain(made['failed'])}")
        else:
            said.append(
                f"{title} {made['compile_seconds']:.1f} s, "
                f"{made['artifact_bytes'] / 2**20:.2f} MiB, {made['kernels']} kernels"
            )
    ratios = _compile_ratios(row)
    if ratios:
        said.append(f"ratios {ratios[0]:.2f} and {ratios[1]:.2f}")
    return f"Compilation: {'; '.join(said)}."


def verdict(rows: Sequence[Mapping[str, Any]], target: str, bars: Bars = BARS) -> str:
    """Every bar: the figure of all cases, whether it is met, and the figures of each case."""
    figures = summarise(rows)
    if not figures:
        return "Nothing was measured."
    every = figures.pop("all")
    is_cpu = target == "llvm"
    lines = [
        f'- Bar "right everywhere": {met(every["right"] == every["shapes"])}, '
        f"{every['right']} of {every['shapes']} shapes"
    ]
    texts = (
        ("slower", f"open / fixed <= {bars.slower} in geometric mean", "", bars.slower, False),
        ("slowest", f"open / fixed <= {bars.slowest} at worst", "slowest_at", bars.slowest, False),
        ("peer", f"best peer / open >= {bars.peer} in geometric mean", "", bars.peer, True),
        ("compile", f"compile time <= {bars.compile}x", "compile_at", bars.compile, False),
        ("size", f"artifact size <= {bars.size}x", "size_at", bars.size, False),
        ("first_ms", f"first run of a shape < {bars.first_ms:g} ms more", "first_at",
         bars.first_ms if is_cpu else None, False),
    )  # fmt: skip
    for key, bar, where, limit, least in texts:
        if key not in every:
            lines.append(f'- Bar "{bar}": not measured')
            continue
        value = every[key]
        at = f" ({every[where]})" if where else ""
        if limit is None:
            lines.append(f"- First run of a shape, ms more than the second: {value:.2f}{at}")
            continue
        holds = value >= limit if least else value <= limit
        # Cases that are refused have no ratio: the others' is no verdict on all.
        part = "" if all(key in found for found in figures.values()) else " by those measured"
        shown = f"{met(holds)}{part}, **{value:.2f}**{at}"
        lines.append(f'- Bar "{bar}": {shown}; {_each(figures, key)}')
    lines.append(f"- Refused or wrong: {'; '.join(map(_plain, every['problems'])) or 'none'}")
    return "\n".join(lines)


def _each(figures: Mapping[str, Mapping[str, Any]], key: str) -> str:
    return ", ".join(
        f"{name} {found[key]:.2f}" if key in found else f"{name} –"
        for name, found in figures.items()
    )
