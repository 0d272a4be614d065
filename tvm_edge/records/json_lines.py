"""Tuning records as JSON Lines: those that ship, and those that travel between machines."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_edge.errors import RecordError
from tvm_edge.files import whole_file, writing
from tvm_edge.records.totals import Counts
from tvm_edge.records.tuning_record import TuningRecord, Workload

__all__ = ["Damage", "LinesFile", "best_lines", "write_lines", "write_whole"]

_LONGEST = 1 << 20  # bytes of a line; a record takes some 700


@dataclass(frozen=True)
class Damage:
    """Part of a store that cannot be read, and why. It costs only itself."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}; it is left out"


class LinesFile:
    """File of tuning records, read once, with the queries of :class:`~tvm_edge.records.Database`.

    Raises
    ------
    RecordError
        The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            status = path.stat()
            self._read = _read(path, status.st_mtime_ns, status.st_size)
        except OSError as err:
            raise RecordError(
                f"cannot read the records in {str(path)!r}: {err.strerror}; give a .jsonl file "
                "that tvm-edge db export wrote"
            ) from err

    def close(self) -> None:
        """Do nothing: no file is open."""

    def all(self) -> tuple[Sequence[TuningRecord], Sequence[Damage]]:
        """Return every record, and the lines that are none."""
        return self._read.records, self._read.damages

    def best(
        self, workload: Workload, kind: str, limit: int
    ) -> tuple[Sequence[TuningRecord], Sequence[Damage]]:
        """Return the fastest records of a workload, best first."""
        return self._read.by_workload.get((workload.key, kind), [])[:limit], self._read.damages

    @property
    def operators(self) -> set[str]:
        """Return the operators that its workloads are of."""
        return {record.workload.operator for record in self._read.records}

    def counts(self) -> Counts:
        """Count records, failures and workloads."""
        records = self._read.records
        return Counts(
            len(records),
            sum(not record.latencies for record in records),
            len({record.workload.key for record in records}),
        )

    def devices(self) -> list[str]:
        """Return the keys of the devices that its records are of."""
        return sorted({record.device.key for record in self._read.records})

    def damages(self) -> list[Damage]:
        """Return the lines that are no records."""
        return list(self._read.damages)


@dataclass(frozen=True)
class _Lines:
    """Contents of a file; the lists are shared by all who read it."""

    records: list[TuningRecord]
    damages: list[Damage]
    by_workload: dict[tuple[str, str], list[TuningRecord]]


@functools.lru_cache(maxsize=16)
def _read(path: Path, _time: int, _size: int) -> _Lines:
    found = _Lines([], [], {})
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b""), start=1):
            if not line.strip():
                continue
            try:
                record = TuningRecord.from_json(line)
            except RecordError as err:
                found.damages.append(Damage(f"{path}:{number}", str(err)))
                continue
            found.records.append(record)
            if record.latencies:
                found.by_workload.setdefault((record.workload.key, record.kind), []).append(record)
    for records in found.by_workload.values():
        records.sort(key=_order)
    return found


def best_lines(records: Iterable[TuningRecord], keep: int) -> list[TuningRecord]:
    """Return the fastest `keep` of each device, kind of target and workload; no failures."""
    taken: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for record in sorted(records, key=_order):
        group = (record.device.key, record.kind, record.workload.key)
        taken[group] += bool(record.latencies)
        if record.latencies and taken[group] <= keep:
            kept.append(record)
    return kept


def write_lines(path: Path, records: Iterable[TuningRecord]) -> int:
    """Write records, workload by workload and best first; the file is whole or as it was.

    Returns
    -------
    int
        How many: of those with one identity one stays.

    Raises
    ------
    RecordError
        The file cannot be written.
    """
    kept: dict[tuple[object, ...], TuningRecord] = {}
    for record in records:
        known = kept.get(record.identity)
        if known is None or record.standing > known.standing:
            kept[record.identity] = record
    ordered = sorted(kept.values(), key=_order)
    write_whole(path, [record.to_json() for record in ordered])
    return len(ordered)


def write_whole(path: Path, lines: Sequence[str]) -> None:
    """Write lines; the file is whole or as it was.

    Raises
    ------
    RecordError
        It cannot be written.
    """
    advice = "make room or choose another path"
    with writing(path, "records to", error=RecordError, advice=advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, streams=True) as file:
            file.writelines(f"{line}\n".encode() for line in lines)


def _order(record: TuningRecord) -> tuple[str, str, str, float, str]:
    return (
        record.device.key,
        record.kind,
        record.workload.key,
        record.cost,
        record.to_json(),
    )
