"""Tuning record: a measurement of a kernel, with its device and its knobs.

A record says all of it in its own terms. It does not depend on TVM's IR, whose hashes change with
each version, so that it outlives the version that it was measured with.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from functools import cached_property
from statistics import median
from typing import Any, TypeVar

from tvm_edge.errors import RecordError
from tvm_edge.records.record_device import RecordDevice
from tvm_edge.schema import check_types

__all__ = [
    "SCHEMA_VERSION",
    "TuningRecord",
    "Value",
    "Workload",
    "canonical",
    "check_origin",
    "parse_record",
    "timestamp",
]

SCHEMA_VERSION = 1

# UTC, with or without a fraction of a second.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")

_R = TypeVar("_R")

Value = str | int | float | bool


@dataclass(frozen=True)
class Workload:
    """Operator, shapes and attributes that a kernel computes.

    Attributes
    ----------
    operator : str
        ``conv2d``.
    shapes : tuple of tuple of int
        Shapes of the operands, in order.
    dtype, layout : str
        Type and layout of the operands.
    attributes : dict
        Attributes of the operator by name: numbers, words, lists of numbers.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    layout: str
    attributes: dict[str, Any] = field(default_factory=dict, hash=False)

    @cached_property
    def key(self) -> str:
        """Workload as one line of JSON: equal for equal workloads, whoever wrote them."""
        return canonical(self)

    @cached_property
    def digest(self) -> str:
        """Hash of the key, which stands for it where space counts."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:32]

    @classmethod
    def from_dict(cls, fields_: Any) -> Workload:
        """Invert :func:`canonical`; types are checked by the reader of the record."""
        shapes = tuple(tuple(shape) for shape in fields_["shapes"])
        return cls(**{**fields_, "shapes": shapes})


@dataclass(frozen=True)
class TuningRecord:
    """Measurement of a kernel, or a failure to measure it.

    Attributes
    ----------
    device : RecordDevice
    target : dict
        TVM's target, of which ``kind`` says through which API the device was used.
    workload : Workload
    template : str
        The family of kernels that the knobs are of.
    template_version : int
        Raised when the same knobs come to mean another kernel.
    config : dict
        Knobs by name.
    latencies : tuple of float
        Seconds of single runs; empty if it failed.
    error : str
        Class of the error if it failed, as ``MeasureTimeout``; else empty.
    tvm : str
        TVM's version.
    time : str
        When it was measured: UTC, ``2026-11-22T19:39:33Z``, with or without a fraction.
    schema : int
    """

    device: RecordDevice
    target: dict[str, Any] = field(hash=False)
    workload: Workload
    template: str
    template_version: int
    config: dict[str, Value] = field(hash=False)
    latencies: tuple[float, ...]
    tvm: str
    time: str
    error: str = ""
    schema: int = SCHEMA_VERSION

    @property
    def kind(self) -> str:
        """TVM's name of the kind of target: ``llvm``, ``opencl``, ``cuda``."""
        return str(self.target["kind"])

    @property
    def cost(self) -> float:
        """Median latency in seconds; infinite for a failure."""
        return median(self.latencies) if self.latencies else float("inf")

    @cached_property
    def config_hash(self) -> str:
        """Name of the knobs within a workload, a template and its version."""
        return hashlib.sha256(canonical(self.config).encode()).hexdigest()[:24]

    @property
    def identity(self) -> tuple[str, str, str, str, int, str]:
        """Key of the kernel and the device: two records of one identity measured the same."""
        return (
            self.device.key,
            self.kind,
            self.workload.digest,
            self.template,
            self.template_version,
            self.config_hash,
        )

    @property
    def standing(self) -> tuple[bool, str, str]:
        """Rank among records of one identity, of which the greatest stays.

        A measurement before a failure, which may be the machine's; then the later one.
        """
        return bool(self.latencies), self.time, self.to_json()

    def to_json(self) -> str:
        """Return one line of JSON, the same for equal records."""
        return canonical(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> TuningRecord:
        """Read a record from text that anybody may have written; inverse of :meth:`to_json`.

        Raises
        ------
        RecordError
            Not a record, or of a schema that is not ours.
        """

        def make(found: dict[str, Any]) -> TuningRecord:
            record = cls(
                **{
                    **found,
                    "device": RecordDevice(**found["device"]),
                    "workload": Workload.from_dict(found["workload"]),
                    "latencies": tuple(found["latencies"]),
                }
            )
            record.check()
            return record

        return parse_record(text, SCHEMA_VERSION, "a record", make)

    def check(self) -> None:
        """Refuse values that mean nothing.

        Raises
        ------
        ValueError
        """
        check_types(self, TuningRecord, "record")
        check_origin(self.device, self.target, self.time)
        if any(dim <= 0 for shape in self.workload.shapes for dim in shape):
            raise ValueError(f"the shapes are {self.workload.shapes}")
        if bool(self.latencies) == bool(self.error):
            raise ValueError("a record has latencies or an error, one of them")
        if any(latency <= 0 for latency in self.latencies):
            raise ValueError(f"the latencies are {self.latencies}")


def timestamp() -> str:
    """Return the time for a record, with a fraction: of two of one kernel the later stays."""
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    return now.replace("+00:00", "Z")


def check_origin(device: RecordDevice, target: dict[str, Any], time: str) -> None:
    """Refuse a device, a target or a time that mean nothing.

    Raises
    ------
    ValueError
    """
    device.check()
    if not isinstance(target.get("kind"), str):
        raise ValueError("the target has no kind")
    if not _TIME.fullmatch(time):
        raise ValueError(f"the time {time!r} is not as 2026-11-22T19:39:33Z")


def parse_record(
    text: str | bytes, version: int, what: str, make: Callable[[dict[str, Any]], _R]
) -> _R:
    """Read a record from a line of JSON that anybody may have written.

    Parameters
    ----------
    text : str or bytes
    version : int
        Version of the schema.
    what : str
        Name of the record in messages.
    make : callable
        Makes a record of the object; may raise what comes of objects that are none.

    Raises
    ------
    RecordError
        No object, of another version of its schema, or not such a record.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise RecordError(f"not JSON ({err})") from err
    if not isinstance(found, dict):
        raise RecordError(f"a JSON {type(found).__name__}, not an object")
    schema = found.get("schema")
    if schema != version or isinstance(schema, bool):
        raise RecordError(
            f"a record of schema {schema!r:.40}, and this version of tvm-edge reads {version}"
        )
    try:
        return make(found)
    except KeyError as err:
        raise RecordError(f"{what} without {err}") from err
    except (TypeError, ValueError, AttributeError) as err:
        raise RecordError(f"not {what}: {err}") from err


def canonical(value: Any) -> str:
    """Return one line of JSON, the same for equal values; a dataclass is a dict of its fields."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_as_dict
    )


def _as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without the copies that ``asdict`` makes."""
    return {each.name: getattr(value, each.name) for each in fields(value)}
