"""Compile ONNX files and compare a run of each with ONNX Runtime's.

A file ``NAME.onnx`` lies in a folder with what belongs to it: ``NAME.case.json`` describes its
inputs, ``NAME.inputs.npz`` and ``NAME.expected.npz`` hold them and ONNX Runtime's outputs. Where
ONNX Runtime's graph optimisations change its own outputs by more than the tolerance (its fusion of
quantised convolutions rounds differently), ``NAME.plain.npz`` has those without them, and an output
that agrees with either is right.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import load_expected, load_inputs, relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser, save_json
from benchmarks.common.paths import ROOT
from benchmarks.common.process_memory import peak_mib
from benchmarks.common.processes import Job, child_command
from benchmarks.models.made_inputs import make_input

__all__ = ["TOLERANCE", "Case", "Detections", "case_parser", "compare_run", "measure"]

TOLERANCE = 1e-3
"""Error that is allowed, of an output's largest value; and of a score, of a threshold."""

# An output may be wrong by less than float32's step at 1: what else is added to it is of that size.
_ROUNDING = 1.2e-7

_STATUSES = ("right", "wrong", "refused", "late", "no reference")


@dataclass(frozen=True)
class Detections:
    """Outputs that are a list of detections, whose number and order may differ.

    Attributes
    ----------
    outputs : sequence of str
        Each has a row per detection, on its first axis, or on its second after a batch of 1.
    scores : str
        The output with the scores; ``"NAME:3"`` for column 3 of one.
    threshold : float
        Detections with a lower score are dropped.
    ties : int
        Detections that may be others: they were chosen by a score that no output has.
    """

    outputs: Sequence[str]
    scores: str
    threshold: float = 0.0
    ties: int = 0


@dataclass(frozen=True)
class Case:
    """An ONNX file and one set of inputs.

    Attributes
    ----------
    name : str
        Of the file, without its suffix.
    source : str
        Where it is from, for the table.
    inputs : mapping of str to (shape, values)
        Values are ``image`` (0 to 1, smooth), ``pixels`` (0 to 255, smooth), ``page`` (-1 to 1,
        lines of dark strokes on white), ``seal`` (a red ring of strokes), ``audio``, ``normal``,
        ``zeros``, ``ones``, ``ids LOW HIGH`` or ``value NUMBER``.
    detections : Detections, optional
    """

    name: str
    source: str
    inputs: Mapping[str, tuple[Sequence[int], str]]
    detections: Detections | None = None


# ------------------------------------------------------------------ comparison


def compare_run(
    actual: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    detections: Detections | None = None,
) -> dict[str, Any]:
    """Compare the outputs of one run.

    Returns
    -------
    dict
        ``status`` (``"right"`` or ``"wrong"``), ``error`` (the largest of all outputs) and
        ``detail``, which is of the output that is worst.
    """
    listed = set(detections.outputs) if detections else set()
    worst: tuple[float, str] = (0.0, "")
    for name, value in expected.items():
        if name not in listed:
            error, detail = _dense_error(np.asarray(actual[name]), value)
            if error > worst[0]:
                worst = (error, f"{name}: {detail}")
    result: dict[str, Any] = {"error": worst[0], "detail": worst[1]}
    result["status"] = "right" if worst[0] <= TOLERANCE else "wrong"
    if detections is not None:
        counts = {name: len(_rows(np.asarray(actual[name]))) for name in detections.outputs}
        if len(set(counts.values())) > 1:
            text = ", ".join(f"{name} {count}" for name, count in counts.items())
            return result | {"status": "wrong", "error": np.inf, "detail": f"rows: {text}"}
        matched, excused, missed = _match_rows(actual, expected, detections)
        result["detections"] = f"{matched} matched, {excused} at a threshold, {missed} missed"
        if missed > detections.ties:
            result |= {"status": "wrong", "detail": f"detections: {result['detections']}"}
    return result


def _dense_error(actual: np.ndarray, expected: np.ndarray) -> tuple[float, str]:
    """The error of an output, and a word about it."""
    if actual.shape != expected.shape:
        return np.inf, f"shape {actual.shape}, expected {expected.shape}"
    if actual.dtype != expected.dtype:
        return np.inf, f"type {actual.dtype}, expected {expected.dtype}"
    if not np.issubdtype(expected.dtype, np.floating) and expected.dtype.itemsize > 1:
        differ = int((actual != expected).sum())
        return (np.inf if differ else 0.0), f"{differ} of {expected.size} integers differ"
    ours, theirs = actual.astype(np.float64), expected.astype(np.float64)
    same = (np.isnan(ours) & np.isnan(theirs)) | (ours == theirs)  # infinities too
    finite = np.isfinite(ours) & np.isfinite(theirs)
    odd = int((~same & ~finite).sum())
    if odd:
        return np.inf, f"{odd} of {ours.size} are not finite on one side alone"
    error = relative_error(ours[finite], theirs[finite])
    if error > TOLERANCE and np.abs(ours[finite] - theirs[finite]).max() < _ROUNDING:
        return 0.0, "less than a rounding of 1"  # ONNX Runtime's sigmoid is 0 below 1e-8
    return error, f"{error:.1e} of the largest value"


def _match_rows(
    actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], found: Detections
) -> tuple[int, int, int]:
    """Pair detections that are equal within the tolerance; count pairs, excused and missed."""
    scales = {
        name: np.maximum(np.abs(_rows(expected[name])).max(0, initial=0), 1e-6)
        for name in found.outputs
    }
    ours, our_scores = _features(actual, scales, found)
    theirs, scores = _features(expected, scales, found)
    free, excused, missed = set(range(len(ours))), 0, 0

    def decide(score: float) -> None:
        nonlocal excused, missed
        # At the limit of the number of detections the lowest score is the threshold.
        limits = (found.threshold, scores.min(initial=np.inf))
        near = min(abs(score - limit) for limit in limits) <= TOLERANCE
        excused, missed = excused + near, missed + (not near)

    for row in np.argsort(-scores):
        candidates = np.array(sorted(free), dtype=int)
        gaps = np.abs(ours[candidates] - theirs[row]).max(1, initial=0)
        if gaps.size and gaps.min() <= TOLERANCE:
            free.remove(int(candidates[gaps.argmin()]))
        else:
            decide(float(scores[row]))
    matched = len(ours) - len(free)
    for row in free:
        decide(float(our_scores[row]))
    return matched, excused, missed


def _rows(output: np.ndarray) -> np.ndarray:
    """A row per detection; columns are flat."""
    if output.ndim == 3 and output.shape[0] == 1:
        output = output[0]
    return output.reshape(len(output), math.prod(output.shape[1:])).astype(np.float64)


def _features(
    outputs: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray], found: Detections
) -> tuple[np.ndarray, np.ndarray]:
    """Scaled rows of all outputs of a list, and their scores; rows of padding are left out."""
    name, _, column = found.scores.partition(":")
    scores = _rows(outputs[name])[:, int(column or 0)]
    parts = []
    for each in found.outputs:
        scale = scales[each]
        if not (column and each == name):  # all columns are of one kind
            scale = scale.max(initial=1e-6)
        parts.append(_rows(outputs[each]) / scale)
    real = scores > 0
    return np.concatenate(parts, 1)[real], scores[real]


# ------------------------------------------------------------------ what the child processes do


def _reference(name: str, folder: Path) -> dict[str, Any]:
    """Make the inputs and write ONNX Runtime's outputs."""
    import onnxruntime

    case = _load_case(name, folder)
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    # Or products of bytes saturate in 16 bits on CPUs that have AVX2 and no more.
    options.add_session_config_entry("session.x64quantprecision", "1")
    path = folder / f"{name}.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {}
    for seed, each in enumerate(session.get_inputs()):
        shape, values = case.inputs[each.name]
        dtype = np.dtype(_NUMPY_NAMES.get(each.type[7:-1], each.type[7:-1]))
        inputs[each.name] = make_input(shape, values, dtype, seed)
    outputs = [output.name for output in session.get_outputs()]
    expected = dict(zip(outputs, session.run(outputs, inputs), strict=True))
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    plain = dict(zip(outputs, session.run(outputs, inputs), strict=True))
    (folder / f"{name}.plain.npz").unlink(missing_ok=True)
    if compare_run(plain, expected, case.detections)["status"] == "wrong":
        np.savez(folder / f"{name}.plain.npz", **plain)
    np.savez(folder / f"{name}.inputs.npz", **inputs)
    np.savez(folder / f"{name}.expected.npz", **expected)
    unusable = [n for n, v in expected.items() if v.dtype.kind == "f" and not np.isfinite(v).any()]
    return {"unusable": [name for name in unusable if expected[name].size]}


_NUMPY_NAMES = {"float": "float32", "double": "float64"}


def _check(name: str, target: str, folder: Path) -> dict[str, Any]:
    """Compile the file, run it, compare."""
    import tvm_edge

    case, inputs = _load_case(name, folder), load_inputs(name, folder)
    path = folder / f"{name}.onnx"
    start, stage = perf_counter(), "compile"
    found: dict[str, Any] = {}
    try:
        model = tvm_edge.compile(path, target, input_shapes=_open_shapes(path, inputs))
        found["compile_seconds"] = round(perf_counter() - start, 2)
        stage = "run"
        print("stage: run", file=sys.stderr, flush=True)
        actual = model.run(inputs)
    except Exception as error:
        message = " ".join(str(error).split())
        found |= {"status": "refused", "detail": f"{stage}: {type(error).__name__}: {message}"}
    else:
        found |= compare_run(actual, load_expected(name, folder), case.detections)
        plain = folder / f"{name}.plain.npz"
        if found["status"] == "wrong" and plain.exists():
            again = compare_run(actual, dict(np.load(plain)), case.detections)
            if again["status"] == "right":
                found |= {**again, "reference": "ONNX Runtime without graph optimisations"}
    return {**found, "seconds": round(perf_counter() - start, 2), "peak_mib": round(peak_mib())}


def _open_shapes(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs that have an open dimension."""
    import onnx

    found = {}
    for each in onnx.load(path, load_external_data=False).graph.input:
        dimensions = each.type.tensor_type.shape.dim
        if each.name in inputs and not all(d.HasField("dim_value") for d in dimensions):
            found[each.name] = inputs[each.name].shape
    return found


def _load_case(name: str, folder: Path) -> Case:
    content = json.loads((folder / f"{name}.case.json").read_text())
    if content["detections"]:
        content["detections"] = Detections(**content["detections"])
    return Case(**content)


# ------------------------------------------------------------------ the parent


@dataclass
class _Table:
    """Rows as they come, on paper and in the file."""

    json: Path | None
    about: Mapping[str, Any]
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["name"]] = row
        print(_line(row), file=sys.stderr, flush=True)
        content = {**self.about, "summary": _summary(self.rows.values())}
        save_json(self.json, {**content, "rows": list(self.rows.values())})


def case_parser(name: str, about: str | None) -> Parser:
    """The command line of a benchmark that calls :func:`measure`."""
    parser = Parser(name, about)
    parser.shared(target="llvm", jobs=1, json=None)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases with it in the name")
    parser.add_argument("--limit-s", type=float, default=300, metavar="S", help="time of a case")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="keep the files here")
    parser.add_argument("--again", action="store_true", help="also cases that --json has already")
    return parser


def measure(cases: Iterable[Case], prepare: Callable[[Case, Path], None], options: Any) -> None:
    """Check cases one by one, print a table.

    Parameters
    ----------
    cases : iterable of Case
    prepare : callable
        Makes ``NAME.onnx`` in a folder where it is not yet; an exception says why it cannot.
    options : argparse.Namespace
        Of :func:`case_parser`. Rows that the file of ``--json`` has already are kept.
    """
    folder = options.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    table = _Table(options.json, {"machine": describe_machine(), "target": options.target})
    if options.json and options.json.exists():
        known = json.loads(options.json.read_text())
        table.rows = {r["name"]: r for r in known["rows"]} if _same(known, options) else {}
    chosen = [case for case in cases if options.only in case.name]
    left = [case for case in chosen if options.again or case.name not in table.rows]
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda case: _row(case, prepare, folder, options), left):
            table.add(row)
    rows = [table.rows[case.name] for case in chosen]
    print("| name | source | compile, s | status | |\n|---|---|---|---|---|")
    print(*map(_line, rows), sep="\n")
    print(_summary(rows))


def _same(known: Mapping[str, Any], options: Any) -> bool:
    return bool(known["target"] == options.target)


def _row(
    case: Case, prepare: Callable[[Case, Path], None], folder: Path, options: Any
) -> dict[str, Any]:
    row: dict[str, Any] = {"name": case.name, "source": case.source}
    try:
        prepare(case, folder)
    except Exception as error:
        return {**row, "status": "no reference", "detail": f"{type(error).__name__}: {error}"}
    described, text = folder / f"{case.name}.case.json", json.dumps(asdict(case), indent=2)
    expected, made = (folder / f"{case.name}.{end}" for end in ("expected.npz", "onnx"))
    fresh = expected.exists() and expected.stat().st_mtime >= made.stat().st_mtime
    if not (fresh and described.exists() and described.read_text() == text):
        described.write_text(text)
        found = _limited(options.limit_s, "reference", case.name, folder)
        if "status" in found:
            return {**row, **found, "status": "no reference"}
    return {**row, **_limited(options.limit_s, "check", case.name, options.target, folder)}


def _limited(seconds: float, *arguments: object) -> dict[str, Any]:
    """Run a job in a process of its own, which is ended after a time."""
    process = subprocess.Popen(
        child_command(__name__, *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a compiler that it started ends with it
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        stage = "run" if "stage: run" in errors else "compile"
        return {"status": "late", "detail": f"{stage}: more than {seconds:.0f} s"}
    if process.returncode == 0:
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result
    last = (errors.strip().splitlines() or ["no message"])[-1]
    ended = f"the process ended with {process.returncode}: {last}"
    return {"status": "refused", "detail": ended}


def _line(row: Mapping[str, Any]) -> str:
    """A line of the table."""
    status, detail = row["status"], " ".join(row.get("detail", "").split()).replace("|", "/")
    if status == "right":
        detail = row.get("detections") or f"{row['error']:.0e}"
        detail += f" of {row['reference']}" if "reference" in row else ""
    elif status != "wrong":
        status = f"**{status}**"
    seconds = row.get("compile_seconds", "")
    return f"| {row['name']} | {row['source']} | {seconds} | {status} | {detail[:200]} |"


def _summary(rows: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter(row["status"] for row in rows)
    comparable = counts.total() - counts["no reference"]
    share = 100 * counts["right"] / max(comparable, 1)
    said = ", ".join(f"{counts[status]} {status}" for status in _STATUSES if counts[status])
    return f"{comparable} files: {said}; {share:.0f} % right"


JOBS: dict[str, Job] = {"reference": _reference, "check": _check}
