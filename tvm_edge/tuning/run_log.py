"""What a run has measured, on the disk round by round: what ``resume`` goes on from.

JSON Lines: a header, a line for each trial, and one at the end of each round. What stands behind
the last whole round, or was cut off, is measured already and not decided by: the round is proposed
again, and its trials that are there are taken from there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tvm_edge.errors import RecordError

__all__ = ["LoggedTrial", "RunLog"]

_VERSION = 1


@dataclass(frozen=True)
class LoggedTrial:
    """A trial: its task, the place of its configuration, and how it went."""

    task: int
    place: int
    latencies: tuple[float, ...]
    error: str = ""


class RunLog:
    """The file of one run.

    Parameters
    ----------
    path : Path
    header : dict
        What the run's course depends on; a file with another one is another run's.
    known : list of list of int
        By task, the places that records had before the run began.
    resume : bool
        Go on from what is there. Else it is written over.

    Attributes
    ----------
    known : list of list of int
        Of a run that is resumed, what was known when it began: records have its own since then.
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
        self, path: Path, header: dict[str, Any], known: list[list[int]], resume: bool
    ) -> None:
        self.path = path
        self.known = known
        self.rounds: list[list[LoggedTrial]] = []
        self.begun: list[LoggedTrial] = []
        header = {"run": _VERSION, **header}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text().splitlines(keepends=True) if resume and path.exists() else []
            kept = self._read(lines, header)
            first = json.dumps({**header, "known": known})
            # Beside it at first: whoever is killed here leaves what was there.
            begun = path.with_suffix(".new")
            self._file: TextIO = begun.open("w")
            self._write([line.rstrip() for line in kept] or [first])
            begun.replace(path)
        except OSError as err:
            raise self._failed(err) from err

    def _read(self, lines: list[str], header: dict[str, Any]) -> list[str]:
        """The lines up to the first that is cut off or of another run."""
        kept: list[str] = []
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                break
            if not line.endswith("\n"):
                break
            if not kept:
                before = found.pop("known", None)
                if found != header or before is None:
                    return []
                self.known = before
            elif found.get("end") == len(self.rounds):
                self.rounds.append(self.begun)
                self.begun = []
            else:
                found["latencies"] = tuple(found["latencies"])
                self.begun.append(LoggedTrial(**found))
            kept.append(line)
        return kept

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

    def _failed(self, err: OSError) -> RecordError:
        return RecordError(
            f"the run's file {str(self.path)!r} cannot be written ({err.strerror or err}); what "
            "was measured before is kept; make room there, or choose another folder with "
            "tuning_logs= (--tuning-records)"
        )
