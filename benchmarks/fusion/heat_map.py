"""Picture of which networks' operators go together in one launch.

Reads what ``python -m benchmarks run parallel_fusion --json JSON`` wrote, whole or cut off. Rows
and columns are the networks that the two operators of a pair are of; a cell has the median of how
many times faster the better order of both is in one launch, and how many pairs that is of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.options import Parser
from benchmarks.fusion.workloads import NETWORKS, groups


def _gains_by_networks(
    rows: Sequence[dict[str, Any]], how: str
) -> dict[tuple[str, str], list[float]]:
    """Gains of pairs, by the networks of their members in alphabetical order.

    Parameters
    ----------
    rows : sequence of dict
        Titles begin with the number of the group.
    how : {"stream", "graph"}
    """
    known, found = groups(), {}
    for row in rows:
        members = known[int(row["title"].partition(":")[0])]
        us = {name: median(own) for name, own in row["us"].get(how, {}).items()}
        merged = [value for name, value in us.items() if name.startswith(("fused", "order"))]
        if len(members) == 2 and "off" in us and merged:
            first, second = sorted(network for network, _ in members)
            found.setdefault((first, second), []).append(us["off"] / min(merged))
    return found


def _draw_heat_map(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A map for each way of launching that was measured."""
    from matplotlib import pyplot

    ways = [how for how in ("stream", "graph") if _gains_by_networks(rows, how)]
    if not ways:
        raise SystemExit("no pair was timed merged and not; nothing is drawn")
    networks = sorted(NETWORKS)
    figure, axes = pyplot.subplots(
        1, len(ways), figsize=(6 * len(ways), 5), layout="constrained", squeeze=False
    )
    for axis, how in zip(axes[0], ways, strict=True):
        values = np.full((len(networks),) * 2, np.nan)
        for (a, b), gains in _gains_by_networks(rows, how).items():
            for i, j in {
                (networks.index(a), networks.index(b)),
                (networks.index(b), networks.index(a)),
            }:
                values[i, j] = median(gains)
                axis.text(j, i, f"{median(gains):.2f}\n({len(gains)})", ha="center", va="center")
        image = axis.imshow(values, cmap="RdYlGn", vmin=0.5, vmax=2.0)
        axis.set(title=f"{how}: off / merged, median (pairs)")
        axis.set_xticks(range(len(networks)), networks, rotation=45, ha="right")
        axis.set_yticks(range(len(networks)), networks)
        figure.colorbar(image, ax=axis)
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str]) -> None:
    """Read and draw."""
    parser = Parser("parallel_heat_map", __doc__)
    parser.add_argument("json", type=Path, help="what --json of parallel_fusion wrote")
    parser.add_argument("png", type=Path, help="the picture to write")
    options = parser.parse_args(arguments)
    _draw_heat_map(json.loads(options.json.read_text()), options.png)
