"""Measurements of benchmarks, a file each: their own JSON in an envelope that says where.

:mod:`benchmarks.papers.jobs` writes them, and ``python -m benchmarks run paper_tables --from
FOLDER`` reads them, of any number of machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.quotes import Quoted

__all__ = ["Measured", "Results", "read_results"]


@dataclass(frozen=True)
class Measured:
    """Findings of one run of a benchmark.

    Attributes
    ----------
    job : str
        Its name in :mod:`benchmarks.papers.jobs`, device included: ``"zoo-opencl"``.
    command : str
        What makes it again.
    machine : dict
        :func:`benchmarks.common.machine.describe_machine`, and ``devices``: by target ``name``,
        ``peak_gflops`` and ``unified_memory``; ``said`` where it is described in words,
        and ``beside``, written by hand: what else ran on it.
    commit : str
    quick : bool
        One round, small sizes: it shows that the benchmark runs, not how fast anything is.
    cut_off : bool
        It ran out of time; what it had written until then is there.
    result : Any
        The benchmark's own JSON; ``None`` where it failed.
    failed : str
        Why, with the last line that it wrote.
    """

    job: str
    command: str
    machine: Mapping[str, Any]
    commit: str
    quick: bool
    cut_off: bool
    result: Any
    failed: str = ""

    @property
    def kind(self) -> str:
        """The job without its device."""
        return self.job.rpartition("-")[0] or self.job

    @property
    def target(self) -> str:
        """The job's device: ``llvm``, ``opencl`` or ``cuda``."""
        return self.job.rpartition("-")[2]

    @property
    def device(self) -> Mapping[str, Any]:
        """Facts of that device."""
        found: Mapping[str, Any] = self.machine.get("devices", {}).get(self.target, {})
        return found

    def is_elsewhere(self, row: Mapping[str, Any]) -> bool:
        """True if a model of :mod:`benchmarks.models.zoo` left this device altogether, by cost."""
        return self.target not in row.get("partitions", self.target).split("+")

    @property
    def label(self) -> str:
        """For the head of a column."""
        name = self.device.get("name", self.machine["cpu"])
        return f"{self.target}, {name}"

    @property
    def machine_line(self) -> str:
        """Machine, versions, date and commit."""
        if said := self.machine.get("said"):
            return f"{said}, commit {self.commit}"
        versions = self.machine["versions"]
        parts = [
            self.machine["date"],
            f"commit {self.commit}",
            self.label,
            f"host {self.machine['cpu']}, {self.machine['cores']} cores",
            f"Python {self.machine['python']}",
            *(f"{name} {v}" for name, v in versions.items() if v != "not installed"),
        ]
        if beside := self.machine.get("beside"):
            parts.append(f"**beside {beside}**")
        if self.quick:
            parts.append("**quick: shows that it runs, not how fast it is**")
        if self.cut_off:
            parts.append("cut off by its time limit")
        return ", ".join(parts)

    def save(self, folder: Path) -> Path:
        """Write it to ``<job>.json``."""
        path = folder / f"{self.job}.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


class Results:
    """All that was measured, on whatever machines, and what is quoted beside it."""

    def __init__(self, found: Iterable[Measured], quotes: Iterable[Quoted] = ()) -> None:
        self._found = list(found)
        self._quotes = list(quotes)

    def quotes(self, exhibit: str) -> Sequence[Quoted]:
        """Quotes of an exhibit: ``"icpp19 Table 1"``."""
        return [each for each in self._quotes if each.exhibit == exhibit]

    def beside(self, more: Iterable[Measured], quotes: Iterable[Quoted]) -> Results:
        """These, and more."""
        return Results([*self._found, *more], [*self._quotes, *quotes])

    def of(self, kind: str, *targets: str) -> Sequence[Measured]:
        """Results of a kind that found something, on the given devices or on all."""
        return [
            each
            for each in self._found
            if each.kind == kind and each.result and (not targets or each.target in targets)
        ]

    @property
    def failed(self) -> Sequence[Measured]:
        """Results that found nothing."""
        return [each for each in self._found if not each.result]

    def __len__(self) -> int:
        return len(self._found)


def read_results(folders: Sequence[Path]) -> Results:
    """Read the files of some folders, and of folders in them.

    Raises
    ------
    SystemExit
        A folder is not there, or a file is not one of these.
    """
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise SystemExit(f"{folder} is not a folder; name one that --save wrote")
        for path in sorted(folder.rglob("*.json")):
            try:
                found.append(Measured(**json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, TypeError) as error:
                raise SystemExit(
                    f"{path} is not a result of paper_tables ({error}); "
                    "move it elsewhere, or measure it again with --save"
                ) from None
    return Results(found)
