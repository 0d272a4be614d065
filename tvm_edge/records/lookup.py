"""Lookup of tuning records: of the device, of its architecture, of its vendor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tvm_edge.errors import RecordError
from tvm_edge.records.database import Database
from tvm_edge.records.folders import DATABASE, LINES, SHIPPED, store_of, stores_below
from tvm_edge.records.json_lines import LinesFile
from tvm_edge.records.record_device import Nearness, RecordDevice
from tvm_edge.records.sqlite_errors import DamagedDatabase
from tvm_edge.records.stores import make_room, open_store
from tvm_edge.records.tuning_record import TuningRecord, Workload

__all__ = ["Found", "RecordLibrary"]

# Of a workload from one file: the second and later ones count where the first is not legal.
_LIMIT = 16
_ALL = 1 << 20

_NEARNESS: tuple[Nearness, ...] = ("device", "architecture", "vendor")


@dataclass(frozen=True)
class Found:
    """Tuning record, the nearness of the device that it was measured on, and its file."""

    record: TuningRecord
    nearness: Nearness
    path: Path

    @property
    def origin(self) -> Literal["tuned", "transferred"]:
        """Origin of a kernel that takes the record's configuration."""
        return "tuned" if self.nearness == "device" else "transferred"


class RecordLibrary:
    """Tuning records that hold for one device, from the nearest to the farthest.

    Records of the user go before those that ship. A file that cannot be read is reported in
    `warnings`, once, and the others count.

    Parameters
    ----------
    device : RecordDevice
    user : Path
        Folder of records, or one file of them; it need not exist.
    shipped : Path, optional
        The package's.
    """

    def __init__(self, device: RecordDevice, user: Path, shipped: Path = SHIPPED) -> None:
        self._device = device
        self._folders = (user, shipped)
        self._open: dict[Path, LinesFile | Database | None] = {}
        self._others: list[Path] | None = None
        self._warnings: dict[str, None] = {}

    def __enter__(self) -> RecordLibrary:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._open.values():
            if store is not None:
                store.close()
        self._open.clear()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Messages about files and lines that could not be read so far."""
        return tuple(self._warnings)

    def candidates(self, workload: Workload, kind: str) -> Iterator[Found]:
        """Yield records of a workload, the best choice first; files are read as far as is asked.

        Parameters
        ----------
        workload : Workload
        kind : str
            Of target, as latencies through another API say little.
        """
        own = self._own()
        # Mostly the first is taken, and reading one record is ten times as fast as reading all.
        first = next(self._ranked(own[:1], workload, kind, ("device",), 1), None)
        if first is not None:
            yield first
        yield from (
            each
            for each in self._ranked(own, workload, kind, ("device",))
            if first is None or each.record != first.record
        )
        yield from self._ranked(
            [*own, *self._of_vendor()], workload, kind, ("architecture", "vendor")
        )

    def of_device(self, workload: Workload, kind: str) -> Iterator[Found]:
        """Yield every record of a workload from this very device, the fastest first."""
        yield from self._ranked(self._own(), workload, kind, ("device",), _ALL)

    def may_have(self, operator: str) -> bool:
        """Return whether this very device may have records of an operator's workloads.

        False saves their lookup one by one. Only files of lines, which are read as a whole, tell.
        """
        stores = map(self._store, self._own())
        return any(
            operator in store.operators if isinstance(store, LinesFile) else store is not None
            for store in stores
        )

    def _own(self) -> list[Path]:
        """List the device's own files: those of a folder, or a file that may hold anything."""
        files = []
        for folder in self._folders:
            if folder.is_file():
                files.append(folder)
                continue
            named = (store_of(folder, self._device.key, suffix) for suffix in (DATABASE, LINES))
            # What is there and no file is named, too.
            files += [path for path in named if path.exists() or path.is_symlink()]
        return files

    def _of_vendor(self) -> list[Path]:
        if self._others is None:
            own = set(self._own())
            found = (
                path
                for folder in self._folders
                if not folder.is_file()
                for path in stores_below(folder, self._device.vendor)
            )
            self._others = [path for path in found if path not in own]
        return self._others

    def _ranked(
        self,
        paths: Sequence[Path],
        workload: Workload,
        kind: str,
        wanted: tuple[Nearness, ...],
        limit: int = _LIMIT,
    ) -> Iterator[Found]:
        found = []
        for place, path in enumerate(paths):
            for record in self._best(path, workload, kind, limit):
                nearness = self._device.near(record.device)
                if nearness in wanted:
                    # Latencies of different devices cannot be compared: file by file.
                    rank = (_NEARNESS.index(nearness), place, record.cost, record.to_json())
                    found.append((rank, Found(record, nearness, path)))
        found.sort(key=lambda item: item[0])
        yield from (each for _, each in found)

    def _best(
        self, path: Path, workload: Workload, kind: str, limit: int
    ) -> Sequence[TuningRecord]:
        store = self._store(path)
        if store is None:
            return ()
        try:
            records, damages = store.best(workload, kind, limit)
        except RecordError as err:
            self._give_up(path, err)
            return ()
        self._warnings |= {str(damage): None for damage in damages}
        return records

    def _store(self, path: Path) -> LinesFile | Database | None:
        if path not in self._open:
            self._open[path] = self._opened(path)
        return self._open[path]

    def _opened(self, path: Path) -> LinesFile | Database | None:
        try:
            return _checked(path)
        except DamagedDatabase as err:
            self._warnings[make_room(path, err)] = None
        except RecordError as err:
            self._give_up(path, err)
            return None
        try:
            return _checked(path)  # what was saved of it
        except RecordError:
            return None

    def _give_up(self, path: Path, err: RecordError) -> None:
        """Go on without a file, and say so."""
        store = self._open.get(path)
        if store is not None:
            with suppress(RecordError):
                store.close()
        self._open[path] = None
        if isinstance(err, DamagedDatabase):
            self._warnings[make_room(path, err)] = None
        else:
            self._warnings[f"{err}; compiled without it"] = None


def _checked(path: Path) -> LinesFile | Database:
    """Open a store, a database after a look at all of its pages.

    Raises
    ------
    RecordError
    """
    store = open_store(path)
    if isinstance(store, Database):
        try:
            store.check_pages()
        except RecordError:
            store.close()
            raise
    return store
