"""Pictures beside the papers' tables: one for each paper of which something was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.papers import apsys20, emdl21, icpp19, very_deep
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Results

__all__ = ["draw", "picture_of"]

_SPARE = 0.8  # of the room between two groups of bars
_HOW = ("graph", "stream")


def picture_of(key: str) -> str:
    """Path of a paper's picture, from the folder of the page."""
    return f"papers/{key}.png"


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Write pictures below the page's folder; their paths from there by paper.

    Without matplotlib nothing is drawn.
    """
    try:
        import matplotlib
    except ImportError:
        print("no pictures: matplotlib is not installed; run: pip install 'tvm-edge[bench]'")
        return {}
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {}
    panels: Mapping[str, Sequence[Callable[[Any, Results], bool]]] = {
        "icpp19": (_speed_ups,),
        "emdl21": (_batches, _groups, _pairs),
        "apsys20": (_work_groups, _rules),
        "very_deep": (_seconds,),
    }
    for key, painters in panels.items():
        # On a figure of its own, which tells whether there is anything to draw.
        wanted = [paint for paint in painters if paint(pyplot.figure().add_subplot(), results)]
        if wanted:
            figure, axes = pyplot.subplots(
                1, len(wanted), figsize=(8 * len(wanted), 4.5), layout="constrained", squeeze=False
            )
            for paint, axis in zip(wanted, axes[0], strict=True):
                paint(axis, results)
            found[key] = picture_of(key)
            path = folder / found[key]
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=80)
        pyplot.close("all")
    return found


def _bars(axis: Any, groups: Sequence[str], series: Mapping[str, Mapping[str, float]]) -> None:
    """Bars of several series side by side; what a series lacks is a gap."""
    width = _SPARE / len(series)
    for place, (label, values) in enumerate(series.items()):
        where = [i + place * width for i, group in enumerate(groups) if group in values]
        axis.bar(where, [values[g] for g in groups if g in values], width, label=label)
    middle = (len(series) - 1) * width / 2
    axis.set_xticks([i + middle for i in range(len(groups))], groups, rotation=20, ha="right")
    axis.legend(fontsize="small")


def _speed_ups(axis: Any, results: Results) -> bool:
    """ICPP'19, Tables 1 to 3."""
    series = icpp19.speed_ups(results)
    if not any(label.startswith("here") for label in series):
        return False
    _bars(axis, list(papers()["icpp19"].zoo), series)
    axis.axhline(1, color="black", lw=0.8)
    axis.set(title="ICPP'19, Tables 1 to 3", ylabel="vendor's library / ours")
    return True


def _batches(axis: Any, results: Results) -> bool:
    """EMDL'21, Figure 3."""
    drawn = False
    for each in results.of("temporal"):
        how = next((h for h in _HOW if emdl21.batches(each, h)), "stream")
        for network, gains in emdl21.batches(each, how).items():
            axis.plot(list(gains), list(gains.values()), "o-", label=f"{network}, {each.label}")
            drawn = True
    if not drawn:
        return False
    axis.axhline(1.35, color="grey", ls=":", label="the paper's most at 5")
    axis.set(title="EMDL'21, Figure 3", xlabel="pictures in a batch", ylabel="throughput over one")
    axis.legend(fontsize="small")
    return True


def _groups(axis: Any, results: Results) -> bool:
    """EMDL'21, Figure 8: all groups, the least gain first."""
    drawn = False
    for each in results.of("groups"):
        for how in reversed(_HOW):
            found = list(emdl21.merged(each, how))
            for size, name in ((2, "pairs"), (3, "triples")):
                gains = sorted(gain for members, gain in found if len(members) == size)
                if gains:
                    shares = [100 * (i + 0.5) / len(gains) for i in range(len(gains))]
                    axis.plot(shares, gains, ".-", label=f"{name}, {how}, {each.label}")
                    drawn = True
    if not drawn:
        return False
    axis.axhline(1, color="black", lw=0.8)
    axis.set(title="EMDL'21, Figure 8", xlabel="% of the groups", ylabel="apart / merged")
    axis.legend(fontsize="small")
    return True


def _pairs(axis: Any, results: Results) -> bool:
    """EMDL'21, Figure 10: FLOPs of both members, and the gain as a colour."""
    flops = {
        (network, node): count
        for each in results.of("complexity")
        for network, found in each.result["networks"].items()
        for node, count in found["operators"].items()
    }
    points = []
    for each in results.of("groups"):
        how = next((h for h in _HOW if any(emdl21.merged(each, h))), "stream")
        for members, gain in emdl21.merged(each, how):
            work = sorted(flops.get((network, node), 0) / 1e6 for network, node in members)
            if len(members) == 2 and work[0]:
                points.append((*work, gain))
    if not points:
        return False
    less, more, gains = zip(*points, strict=True)
    marks = axis.scatter(less, more, c=gains, cmap="RdYlGn", vmin=0.5, vmax=1.5, edgecolors="grey")
    axis.figure.colorbar(marks, ax=axis, label="apart / merged")
    axis.set(xscale="log", yscale="log", xlabel="MFLOP of the smaller", ylabel="of the larger")
    axis.set_title("EMDL'21, Figure 10")
    return True


def _work_groups(axis: Any, results: Results) -> bool:
    """APSys'20, Figure 5."""
    drawn = False
    for each in results.of("workgroup"):
        for name, layer in apsys20.layers(each).items():
            if name not in apsys20.PAPERS_LAYERS:
                continue
            times = [us / layer["best_us"] for us in layer["us"].values()]
            label = f"{name}, {each.label}, median {median(times):.2f}"
            axis.hist(times, bins=40, histtype="step", label=label)
            drawn = True
    if not drawn:
        return False
    axis.axvline(apsys20.COMPETITIVE, color="grey", ls=":")
    axis.set(title="APSys'20, Figure 5", xlabel="time / best", ylabel="work-group sizes")
    axis.legend(fontsize="small")
    return True


def _rules(axis: Any, results: Results) -> bool:
    """APSys'20, Figure 6, by layer."""
    quotes = results.quotes("apsys20 Figure 5")
    series = {
        f"{name}, {quote.label}": {row["layer"]: row[f"{key} / best"] for row in quote.records}
        for quote in quotes
        for key, name in (("rules", "rules"), ("default", "TVM's default"))
    }
    if not series:
        return False
    _bars(axis, [row["layer"] for row in quotes[0].records], series)
    axis.axhline(1, color="black", lw=0.8)
    axis.set(title="APSys'20, Figure 6, by layer", ylabel="time / best")
    axis.tick_params("x", labelsize="x-small")
    return True


def _seconds(axis: Any, results: Results) -> bool:
    """Very deep CNNs, Table 1."""
    printed = papers()["very_deep"].exhibits["Table 1"]
    columns = ("CPU", *very_deep.STRATEGIES)
    series = {
        f"paper, {row[0]}": {
            name: value for name, value in zip(printed.columns, row, strict=True) if name in columns
        }
        for row in printed.rows
    }
    series = {label: {k: v for k, v in own.items() if v} for label, own in series.items()}
    names = {ours: theirs for theirs, ours in papers()["very_deep"].zoo.items()}
    ours = {
        f"{target}, {names.get(network, network)}": {k: run["seconds"] for k, run in runs.items()}
        for each in results.of("strategies")
        for network, target, runs in very_deep.strategies(each)
    }
    if not any(ours.values()):
        return False
    _bars(axis, columns, series | ours)
    axis.set(title="Very deep CNNs, Table 1", ylabel="seconds an image", yscale="log")
    return True
