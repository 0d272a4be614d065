"""Tuning records of a run: those it begins with, and those it writes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import tvm

from tvm_edge.errors import TvmEdgeWarning
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.hardware.kinds import KINDS
from tvm_edge.records import (
    RecordDevice,
    RecordLibrary,
    TuningRecord,
    Value,
    Workload,
    add_records,
    prepare_store,
    timestamp,
)
from tvm_edge.schedules.conv_records import (
    TEMPLATES,
    config_of,
    config_space,
    recorded_config,
    recorded_target,
    recorded_workload,
    template_of,
)
from tvm_edge.tuning.tasks import Task

__all__ = ["Recorder"]

_KNOWN = 4  # records of a task to begin with


class Recorder:
    """Tuning records of one device in a folder.

    Parameters
    ----------
    resolved : ResolvedTarget
        Of this machine.
    folder : Path

    Raises
    ------
    RecordError
        The folder cannot be written, or what lies there is another program's: said before anything
        is measured.
    """

    def __init__(self, resolved: ResolvedTarget, folder: Path) -> None:
        self._resolved, self._folder = resolved, folder
        for message in prepare_store(folder, resolved.spec.key):
            warnings.warn(message, TvmEdgeWarning, stacklevel=4)
        self.driver: str | None = None
        """Version of the device's driver; this machine's if not given."""
        self._pending: list[TuningRecord] = []

    def known(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Return by task the places of configurations with records, of this or a like device."""
        spec = self._resolved.spec
        found = []
        with RecordLibrary(RecordDevice.of(spec), self._folder) as library:
            for task in tasks:
                places = {config: place for place, config in enumerate(task.configs)}
                blocks = bool(task.configs[0].block)  # of one layout all of them
                space = config_space(task.workload, spec, blocks=blocks)
                own: dict[int, None] = {}
                for each in library.candidates(
                    recorded_workload(task.workload), self._resolved.kind
                ):
                    try:
                        place = places.get(config_of(each.record, space, spec))
                    except ValueError:  # of another version, or not legal here
                        continue
                    if place is not None:
                        own[place] = None
                    if len(own) == _KNOWN:
                        break
                found.append(list(own))
            for message in library.warnings:
                warnings.warn(message, TvmEdgeWarning, stacklevel=4)
        return found

    def keep(self, task: Task, place: int, latencies: tuple[float, ...], error: str = "") -> None:
        """Note a measurement of one of a task's configurations, or a failure; not yet written."""
        template = template_of(self._resolved.spec, task.workload)
        workload, config = recorded_workload(task.workload), recorded_config(task.configs[place])
        self.note(workload, template, config, latencies, error)

    def note(
        self,
        workload: Workload,
        template: str,
        config: dict[str, Value],
        latencies: tuple[float, ...],
        error: str = "",
    ) -> None:
        """Note a measurement in the terms of records; not yet written."""
        spec = self._resolved.spec
        self._pending.append(
            TuningRecord(
                RecordDevice.of(spec, self._own_driver()),
                recorded_target(self._resolved.kind, spec),
                workload,
                template,
                TEMPLATES[template],
                config,
                latencies,
                tvm.__version__,
                timestamp(),
                error,
            )
        )

    def _own_driver(self) -> str:
        if self.driver is None:
            self.driver = _driver(self._resolved.kind)
        return self.driver

    def save(self) -> None:
        """Write the measurements noted since.

        Raises
        ------
        RecordError
            The disk is full, the database is another program's, …
        """
        if not self._pending:
            return
        records, self._pending = self._pending, []
        try:
            added = add_records(self._folder, records)
        except KeyboardInterrupt:
            self._pending = records  # for the last time, when the run ends
            raise
        for message in added.warnings:
            warnings.warn(message, TvmEdgeWarning, stacklevel=4)


def _driver(kind: str) -> str:
    """The version of the device's driver; empty of CPUs."""
    return str(KINDS[kind].driver(0).get("driver", ""))
