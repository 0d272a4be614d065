"""Tuning records of a network's layouts: one line of JSON each, a file for each device.

They stand beside the device's database, ``<vendor>/<device>.layouts``. A record names the network
by what it computes, and says of each of its operators in which layout; it does not depend on TVM's
IR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tvm_edge.errors import RecordError
from tvm_edge.files import writing
from tvm_edge.records.folders import store_of
from tvm_edge.records.json_lines import Damage, write_whole
from tvm_edge.records.record_device import RecordDevice
from tvm_edge.records.tuning_record import Value, canonical, check_origin, parse_record
from tvm_edge.schema import check_types

__all__ = [
    "LAYOUTS",
    "LayoutRecord",
    "LayoutTransform",
    "find_layouts",
    "layouts_below",
    "read_layouts",
    "update_layouts",
]

LAYOUTS = ".layouts"
"""Suffix of files of layouts."""

_WAIT_S = 60  # for another writer


@dataclass(frozen=True)
class LayoutTransform:
    """Image that is written in another layout.

    Attributes
    ----------
    operator : int
        Whose result it is.
    before, after : int
        Channels in a block, 0 for NCHW; the same where channels are gathered.
    seconds : float
        As predicted.
    """

    operator: int
    before: int
    after: int
    seconds: float


@dataclass(frozen=True)
class LayoutRecord:
    """Layouts of a network on a device.

    Attributes
    ----------
    device : RecordDevice
    target : dict
        Kind of target, and cores of a CPU.
    network : str
        A digest of its operators and how they are connected.
    name : str
        For people.
    layouts : tuple of int
        By operator the channels in a block, 0 for NCHW.
    template : str
    template_version : int
        Of the configurations.
    configs : dict
        Knobs by name, by the number of each convolution in blocks.
    transforms : tuple of LayoutTransform
    predicted, bound : float
        Seconds of a run by what its operators and transforms take; what no choice is below, by the
        same.
    measured, before : float
        Seconds of a run as measured, with these layouts and without.
    tvm, time : str
        As of :class:`~tvm_edge.records.TuningRecord`.
    schema : int
    """

    device: RecordDevice
    target: dict[str, Any] = field(hash=False)
    network: str
    name: str
    layouts: tuple[int, ...]
    template: str
    template_version: int
    configs: dict[str, dict[str, Value]] = field(hash=False)
    transforms: tuple[LayoutTransform, ...]
    predicted: float
    bound: float
    measured: float
    before: float
    tvm: str
    time: str
    schema: int = 1

    @property
    def identity(self) -> tuple[str, str, str]:
        """Device, target and network; of two records of one identity the later stays."""
        return self.device.key, canonical(self.target), self.network

    def to_json(self) -> str:
        """Return one line of JSON, the same for equal records."""
        return canonical(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> LayoutRecord:
        """Read a record from text that anybody may have written; inverse of :meth:`to_json`.

        Raises
        ------
        RecordError
        """

        def make(found: dict[str, Any]) -> LayoutRecord:
            record = cls(
                **{
                    **found,
                    "device": RecordDevice(**found["device"]),
                    "layouts": tuple(found["layouts"]),
                    "transforms": tuple(LayoutTransform(**t) for t in found["transforms"]),
                }
            )
            record.check()
            return record

        return parse_record(text, 1, "a record of layouts", make)

    def check(self) -> None:
        """Refuse values that mean nothing.

        Raises
        ------
        ValueError
        """
        check_types(self, LayoutRecord, "record")
        check_origin(self.device, self.target, self.time)
        if any(layout < 0 for layout in self.layouts):
            raise ValueError("a block of less than no channels")
        numbers = {str(number) for number in range(len(self.layouts))}
        if not numbers.issuperset(self.configs):
            raise ValueError("configurations of operators that it does not have")
        if not all(0 <= own.operator < len(self.layouts) for own in self.transforms):
            raise ValueError("transforms of operators that it does not have")
        if not all(s > 0 for s in (self.predicted, self.measured, self.before)):
            raise ValueError("a run in no time")


def layouts_below(folder: Path) -> list[Path]:
    """List files of layouts in a folder."""
    return sorted(path for path in folder.rglob(f"*{LAYOUTS}") if path.is_file())


def read_layouts(path: Path) -> tuple[list[LayoutRecord], list[Damage]]:
    """Return the records of a file, and the lines that are none.

    Raises
    ------
    RecordError
        The file cannot be read.
    """
    records, damages = [], []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as err:
        raise RecordError(
            f"cannot read the layouts in {str(path)!r}: {err.strerror}; move the file away"
        ) from err
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(LayoutRecord.from_json(line))
        except RecordError as err:
            damages.append(Damage(f"{path}:{number}", str(err)))
    return records, damages


def find_layouts(
    folders: Sequence[Path], key: str, target: dict[str, Any], network: str
) -> tuple[LayoutRecord | None, tuple[str, ...]]:
    """Return the layouts of a network on a device, from the first folder that has some.

    Returns
    -------
    LayoutRecord or None
    tuple of str
        What could not be read.
    """
    warnings: list[str] = []
    for folder in folders:
        path = store_of(folder, key, LAYOUTS)
        if folder.is_file() or not path.is_file():
            continue
        try:
            records, damages = read_layouts(path)
        except RecordError as err:
            warnings.append(f"{err}; compiled without it")
            continue
        warnings += map(str, damages)
        wanted = (key, canonical(target), network)
        for record in records:
            if record.identity == wanted:
                return record, tuple(warnings)
    return None, tuple(warnings)


def update_layouts(
    folder: Path, key: str, change: Callable[[list[LayoutRecord]], list[LayoutRecord]]
) -> tuple[str, ...]:
    """Write a device's layouts anew; the file is whole or as it was, whoever else writes.

    Parameters
    ----------
    folder : Path
    key : str
        Of the device.
    change : callable
        From the records there are to those there are to be.

    Returns
    -------
    tuple of str
        Lines that could not be read, and are gone.

    Raises
    ------
    RecordError
        The file cannot be written.
    """
    path = store_of(folder, key, LAYOUTS)
    advice = "choose another folder by TVM_EDGE_TUNING_LOGS"
    with writing(path, "layouts to", error=RecordError, advice=advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(path.with_name(f".{path.name}.lock"), timeout=_WAIT_S):
                records, damages = read_layouts(path) if path.exists() else ([], [])
                write_whole(path, [record.to_json() for record in change(records)])
        except Timeout as err:
            raise RecordError(
                f"another process keeps the layouts in {str(path)!r}; wait for it, or end it"
            ) from err
    return tuple(map(str, damages))
