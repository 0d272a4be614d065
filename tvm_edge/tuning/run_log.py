"""Log of a run's trials, on the disk round by round, from which ``resume`` goes on.

JSON Lines: a header, a line for each trial, and one at the end of each round. Trials after the last
whole round are measured already, but no decision rests on them: the round is proposed again, and
the trials of it that are there are taken from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from filelock import FileLock, Timeout

from tvm_edge.errors import RecordError
from tvm_edge.schema import check_types

__all__ = ["LoggedTrial", "RunLog"]

_VERSION = 1


@dataclass(frozen=True)
class LoggedTrial:
    """Trial: its task, the place of its configuration, and its result."""

    task: int
    place: int
    latencies: tuple[float, ...]
    error: str = ""

    @property
    def cost(self) -> float:
        """Seconds by which records rank: the median, which bursts of other work do not move."""
        return median(self.latencies) if self.latencies else float("inf")


class RunLog:
    """File of one run.

    It is locked: a second process with the same run at the same time writes a file beside it.

    Parameters
    ----------
    path : Path
    header : dict
        Names the run; a file with another one is another run's.
    known : list of list of int
        Places of configurations, by task, that the run begins with.
    slots : int
        Trials of a round.
    sizes : sequence of int
        How many configurations each task has.
    resume : bool
        Go on from the trials there are. Else the file is written over.

    Attributes
    ----------
    known, slots
        As given; of a run that is resumed those that it began with: since then its own records may
        have become known.
    rounds : list of list of LoggedTrial
        The whole rounds that were there.
    begun : list of LoggedTrial
        Those of the round after.

    Raises
    ------
    RecordError
        The file cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        known: list[list[int]],
        slots: int,
        sizes: Sequence[int],
        resume: bool,
    ) -> None:
        self.path = path
        self.known, self.slots = known, slots
        self.rounds: list[list[LoggedTrial]] = []
        self.begun: list[LoggedTrial] = []
        self._sizes = sizes
        header = {"run": _VERSION, **header}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            self._file = self.path.open("a")
            there = self.path.read_bytes().splitlines(keepends=True) if resume else []
            kept = self._read(there, header)
            os.ftruncate(self._file.fileno(), kept)
            begins = {**header, "known": self.known, "slots": self.slots}
            self._write([] if kept else [json.dumps(begins)])
        except OSError as err:
            raise self._failed(err) from err

    def _locked(self) -> FileLock:
        for number in count(2):
            lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
            try:
                lock.acquire(blocking=False)
            except Timeout:
                self.path = self.path.with_stem(f"{self.path.stem.split('-')[0]}-{number}")
            else:
                return lock
        raise AssertionError

    def _read(self, lines: list[bytes], header: dict[str, Any]) -> int:
        """Take the lines up to the first that is cut off or damaged; returns their length."""
        kept = 0
        for number, line in enumerate(lines):
            try:
                found = json.loads(line)
                if not line.endswith(b"\n"):
                    break
                if number:
                    self._take(found)
                elif not self._take_header(found, header):
                    break
            # Whatever is wrong with a line, it is none of this run's.
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
                break
            kept += len(line)
        return kept

    def _take_header(self, found: dict[str, Any], header: dict[str, Any]) -> bool:
        known, slots = found.pop("known"), found.pop("slots")
        if found != header:
            return False
        check_types(known, list[list[int]], "known")
        check_types(slots, int, "slots")
        for places, size in zip(known, self._sizes, strict=True):
            if not all(0 <= place < size for place in places):
                raise ValueError
        if slots < 1:
            raise ValueError
        self.known, self.slots = known, slots
        return True

    def _take(self, found: dict[str, Any]) -> None:
        if "end" in found:
            if found != {"end": len(self.rounds)}:
                raise ValueError
            self.rounds.append(self.begun)
            self.begun = []
            return
        trial = LoggedTrial(**{**found, "latencies": tuple(found["latencies"])})
        check_types(trial, LoggedTrial, "trial")
        if not 0 <= trial.task < len(self._sizes) or not (
            0 <= trial.place < self._sizes[trial.task]
        ):
            raise ValueError
        if bool(trial.latencies) == bool(trial.error) or any(s <= 0 for s in trial.latencies):
            raise ValueError
        self.begun.append(trial)

    def add(self, trial: LoggedTrial) -> None:
        """Write a trial; it is on the disk when the round ends."""
        try:
            self._file.write(json.dumps(trial.__dict__) + "\n")
        except OSError as err:
            raise self._failed(err) from err

    def end_round(self, number: int) -> None:
        """Write the end of a round, and wait until the disk has it."""
        try:
            self._write([json.dumps({"end": number})])
        except OSError as err:
            raise self._failed(err) from err

    def _write(self, lines: list[str]) -> None:
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what was written stays."""
        try:
            self._file.close()
        except OSError as err:
            raise self._failed(err) from err
        finally:
            self._lock.release()

    def _failed(self, err: OSError) -> RecordError:
        return RecordError(
            f"the run's file {str(self.path)!r} cannot be written ({err.strerror or err}); what "
            "was measured before is kept; make room there, or choose another folder with "
            "tuning_logs= (--tuning-records)"
        )
