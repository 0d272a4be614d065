"""Checks of the arguments of ``tune``."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import Any

from tvm_edge.compiler.options import check_precision
from tvm_edge.errors import DeviceUnavailableError, InputError, near_matches
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.rpc.address import parse_address
from tvm_edge.runtime.devices import device_of

__all__ = ["LEVELS", "check_device", "check_options", "check_tuned_precision"]

_PRECISIONS = ("float32", "tf32", "float16", "mixed")

LEVELS = {"fast": 10, "normal": 64, "exhaustive": None}
"""Trials for each distinct convolution, shared out by what they are expected to save."""


def check_options(
    *,
    trials: Any,
    time_budget: Any,
    level: Any,
    precision: Any,
    tracker: Any,
    key: Any,
    tuning_logs: Any,
    seed: Any,
    graph: Any = False,
    parallel_fusion: Any = False,
) -> None:
    """Refuse values that mean nothing, and those that this version cannot honour.

    Raises
    ------
    InputError
    """
    if trials is not None:
        _check_number("trials", trials, 1)
    _check_number("seed", seed, 0)
    if time_budget is not None and (
        not isinstance(time_budget, int | float)
        or isinstance(time_budget, bool)
        or not time_budget > 0
    ):
        raise InputError(
            f"time_budget is {time_budget!r}, and must be a positive number of seconds",
            name="time_budget",
            got=repr(time_budget),
        )
    for name, value, known in (("level", level, LEVELS), ("precision", precision, _PRECISIONS)):
        if not isinstance(value, str) or value not in known:
            raise InputError(
                f"{name}={value!r} does not exist; {near_matches(str(value), known)}",
                name=name,
                expected=", ".join(known),
                got=repr(value),
            )
    if precision != "float32" and (graph or parallel_fusion):
        name = "graph" if graph else "parallel_fusion"
        raise InputError(
            f"{name}=True chooses for float32, not for precision={precision!r}; leave one of them "
            "out",
            name=name,
        )
    for name, value in (("graph", graph), ("parallel_fusion", parallel_fusion)):
        if not isinstance(value, bool):
            raise InputError(
                f"{name}={value!r} is neither True nor False; use one of them",
                name=name,
                got=repr(value),
            )
    if tracker is not None:
        parse_address(tracker, "tracker")
    elif key is not None:
        raise InputError(
            f'key={key!r} (--rpc-key) is given without a tracker; add tracker="HOST:PORT" '
            "(--rpc-tracker), or leave it out to tune on this machine",
            name="key",
            got=repr(key),
        )
    if isinstance(tuning_logs, bool):
        raise InputError(
            f"tuning_logs={tuning_logs!r} (--tuning-records none) names no folder, and a run has "
            "to keep what it measures; leave it out, or name a folder",
            name="tuning_logs",
            got=repr(tuning_logs),
        )
    if tuning_logs is not None and Path(tuning_logs).is_file():
        raise InputError(
            f"tuning_logs={str(tuning_logs)!r} is a file, and a run writes a folder of them; name "
            "its folder",
            name="tuning_logs",
            got=repr(str(tuning_logs)),
        )


def _check_number(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(
            f"{name} is {value!r}, and must be a whole number of at least {least}",
            name=name,
            expected=f"a number >= {least}",
            got=repr(value),
        )


def check_tuned_precision(precision: str, resolved: ResolvedTarget) -> None:
    """Refuse a precision that the device has no tunable kernels for.

    Raises
    ------
    InputError
    """
    check_precision(precision, resolved)
    if precision != "float32" and not resolved.spec.tensor_cores:
        raise InputError(
            f"precision={precision!r} cannot be tuned on {resolved.spec.name}: records beside "
            "those of float32 and int8 are of NVIDIA's tensor cores (compute capability 7.5 or "
            "newer); leave precision out",
            name="precision",
            expected="'float32'",
            got=repr(precision),
        )


def check_device(resolved: ResolvedTarget) -> None:
    """Refuse another device than this machine's: measurements here are records of this machine.

    Raises
    ------
    DeviceUnavailableError
    """
    kind = resolved.kind
    if not device_of(kind).exists:
        raise DeviceUnavailableError(
            f"this machine has no {kind} device to measure {resolved.spec.name} on; tvm-edge "
            "devices shows what it has"
        )
    here = resolve_target(kind).spec
    if here.key != resolved.spec.key:
        raise DeviceUnavailableError(
            f"{resolved.spec.name} is not in this machine, whose {kind} device is {here.name} "
            f"({here.key}); tune on boards that have it (tracker=, key=; --rpc-tracker, "
            f"--rpc-key), or with target={kind!r} for this one"
        )
