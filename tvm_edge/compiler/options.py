"""The options of a compilation, checked once at the door."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_edge.compiler.convolutions import TuningLogs
from tvm_edge.errors import InputError, PlacementError, near_matches
from tvm_edge.frontend import GivenLength, ImportedModel, Picture
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.memory.budget import parse_budget

__all__ = [
    "Options",
    "check_options",
    "check_overrides",
    "check_precision",
    "check_window",
    "exceptions_of",
]

_PRECISIONS = ("float32", "tf32", "float16", "mixed", "bfloat16")
_LOWER = ("float16", "mixed", "bfloat16")
_FALLBACKS = ("auto", "list", "none", "error")
_LEAST_WINDOW = 64 << 10  # asking for a part costs as much as reading some KiB


@dataclass(frozen=True, kw_only=True)
class Options:
    """Parameters of ``compile`` beside the model and the target.

    Where nobody says otherwise there are no records.
    """

    host: Any = None
    input_shapes: Mapping[str, Sequence[GivenLength]] | None = None
    input_values: Mapping[str, Any] | None = None
    preprocess: Mapping[str, Picture] | None = None
    example_inputs: Any = None
    precision: str = "float32"
    precision_exceptions: Sequence[str] = ()
    fallback: str | Sequence[str] = "auto"
    parallel_fusion: str | bool = "auto"
    memory_budget: int | str | None = None
    tuning_logs: TuningLogs = False
    num_threads: int | None = None
    cpus: Sequence[int] | None = None
    progress: Callable[[str, int, int], None] | None = None


def check_options(options: Options) -> None:
    """Refuse values that mean nothing, and those that this version cannot honour.

    Raises
    ------
    InputError
    """
    precision, precision_exceptions = options.precision, options.precision_exceptions
    if precision not in _PRECISIONS:
        _refuse("precision", precision, near_matches(str(precision), _PRECISIONS))
    if isinstance(precision_exceptions, str) or not all(
        isinstance(name, str) for name in precision_exceptions
    ):
        _refuse(
            "precision_exceptions",
            precision_exceptions,
            "use a list of operators or ONNX nodes",
        )
    if precision_exceptions and precision not in _LOWER:
        raise InputError(
            f"precision_exceptions name what stays float32, and with precision={precision!r} all "
            "does; leave them out, or use precision='mixed', 'float16' or 'bfloat16'",
            name="precision_exceptions",
            got=repr(list(precision_exceptions)),
        )
    fallback = options.fallback
    named = not isinstance(fallback, str) and isinstance(fallback, Sequence)
    if fallback not in _FALLBACKS and not (
        named and all(isinstance(name, str) for name in fallback)
    ):
        _refuse(
            "fallback",
            fallback,
            f"use one of {', '.join(_FALLBACKS)}, or a list of operator names",
        )
    fusion = options.parallel_fusion
    if fusion != "auto" and not isinstance(fusion, bool):
        _refuse("parallel_fusion", fusion, "use 'auto', True or False")
    parse_budget(options.memory_budget)
    _check_tuning_logs(options.tuning_logs)
    if options.progress is not None and not callable(options.progress):
        _refuse("progress", options.progress, "use a function of a phase and two numbers, or None")


def _check_tuning_logs(tuning_logs: Any) -> None:
    if tuning_logs is None or tuning_logs is False:
        return
    if isinstance(tuning_logs, bool) or not isinstance(tuning_logs, (str, os.PathLike)):
        _refuse("tuning_logs", tuning_logs, "use a folder or file of records, or False for none")
    if not Path(tuning_logs).expanduser().exists():
        raise InputError(
            f"there are no tuning records at {str(tuning_logs)!r}; name a folder of "
            "VENDOR/DEVICE.sqlite3 or .jsonl, or such a file (tvm-edge db list shows those there "
            "are), or leave tuning_logs out",
            name="tuning_logs",
            expected="a folder or file",
            got=str(tuning_logs),
        )


def check_precision(precision: str, resolved: ResolvedTarget) -> None:
    """Refuse a precision that the target's device does not have.

    Raises
    ------
    InputError
    """
    if precision in ("float16", "mixed"):
        _check_float16(precision, resolved)
    if precision == "bfloat16" and resolved.spec.launches_grids:
        raise InputError(
            f"precision='bfloat16' is for CPUs, and the target is {resolved.kind} "
            f"({resolved.spec.name}); use precision='mixed' or 'float16' there, or target='llvm'",
            name="precision",
            expected="'mixed'",
            got="'bfloat16'",
        )
    if precision != "tf32":
        return
    cores = resolved.spec.tensor_cores
    if cores is None or "float32" not in cores.dtypes:
        raise InputError(
            f"precision='tf32' needs tensor cores that have it, and the target is {resolved.kind} "
            f"({resolved.spec.name}); use target='cuda' on an NVIDIA GPU of compute capability "
            "8.0 or newer, or leave precision at 'float32'",
            name="precision",
            expected="'float32'",
            got="'tf32'",
        )


def _check_float16(precision: str, resolved: ResolvedTarget) -> None:
    spec = resolved.spec
    if not spec.launches_grids:
        if spec.float16_vectors:
            return
        what = "needs a CPU that converts vectors of float16 (x86: F16C, Arm: NEON)"
        advice = (
            "use the target of a CPU that has them, such as {'kind': 'llvm', 'mcpu': 'haswell'}"
        )
    elif spec.float16 or precision == "mixed":  # which is float32 there, and the report says so
        return
    else:
        lacks = " (cl_khr_fp16)" if resolved.kind == "opencl" else ""
        what = f"needs a device that calculates in float16{lacks}"
        advice = (
            "choose another one (tvm-edge devices lists those of this machine), or "
            "precision='mixed', which stays float32 there"
        )
    raise InputError(
        f"precision={precision!r} {what}, and the target is {resolved.kind} ({spec.name}); "
        f"{advice}, or leave precision at 'float32'",
        name="precision",
        expected="'float32'",
        got=repr(precision),
    )


def check_window(name: str, window: Any) -> None:
    """Refuse a window for streamed weights that is no number of bytes, or too few.

    Raises
    ------
    InputError
    """
    if window is None:
        return
    if isinstance(window, bool) or not isinstance(window, int):
        _refuse(name, window, "use a number of bytes, or None")
    if window < _LEAST_WINDOW:
        _refuse(name, window, f"use {_LEAST_WINDOW} bytes at least, or None")


def exceptions_of(model: ImportedModel, names: Sequence[str]) -> dict[int, str]:
    """The nodes that ``precision_exceptions`` keeps in float32, and why.

    Raises
    ------
    InputError
        A name is neither an operator nor a node of the model.
    """
    known = {node.name for node in model.nodes} | {node.op_type for node in model.nodes}
    for name in names:
        if name not in known:
            raise InputError(
                f"precision_exceptions name {name!r}, which is neither an operator nor a node of "
                f"{model.name}; {near_matches(name, known)}",
                name="precision_exceptions",
                got=repr(name),
            )
    return {
        index: "named in precision_exceptions"
        for index, node in enumerate(model.nodes)
        if node.name in names or node.op_type in names
    }


def check_overrides(model: ImportedModel, operators: Sequence[str]) -> None:
    """Refuse names in ``fallback=`` that are neither an operator type nor a node of the model.

    Raises
    ------
    PlacementError
    """
    known = {node.name for node in model.nodes} | {node.op_type for node in model.nodes}
    for name in operators:
        if name not in known:
            raise PlacementError(
                f"fallback names {name!r}, which is neither an operator nor a node of "
                f"{model.name}; {near_matches(name, known)}"
            )


def _refuse(name: str, value: Any, advice: str) -> None:
    raise InputError(f"{name}={value!r} is not a valid value; {advice}", name=name, got=repr(value))
