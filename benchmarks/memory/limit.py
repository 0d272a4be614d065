"""A memory limit for a child process: a control group, or the kernel's limit of private memory.

In a control group (v2, or v1's memory controller) all that the child touches counts, the pages of
files among it, but those the kernel drops before it kills. Where none can be made, ``RLIMIT_DATA``
bounds what the child may map for itself. ``RLIMIT_AS`` would not do: address space is no memory.
"""

from __future__ import annotations

import os
import resource
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

__all__ = ["Limit", "limited"]

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Limit:
    """A limit that is set.

    Attributes
    ----------
    kind : {"cgroup v2", "cgroup v1", "RLIMIT_DATA"}
    enter : callable
        For ``preexec_fn`` of the child.
    """

    kind: str
    enter: Callable[[], None]


@contextmanager
def limited(nbytes: int) -> Iterator[Limit]:
    """A limit of so many bytes, for as long as the block runs.

    Parameters
    ----------
    nbytes : int
    """
    for kind, root, limit, swap in (
        ("cgroup v2", _V2, "memory.max", "memory.swap.max"),
        ("cgroup v1", _V1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    ):
        group = root / _own(kind) / f"tvm-edge-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:  # a file that is not there is no control, or this no control group at all
            with (group / limit).open("r+") as file:
                file.write(str(nbytes))
        except OSError:
            group.rmdir()
            continue
        with suppress(OSError), (group / swap).open("r+") as file:  # it may count no swap
            file.write("0" if kind == "cgroup v2" else str(nbytes))
        procs = group / "cgroup.procs"
        try:
            yield Limit(kind, lambda procs=procs: _join(procs))
        finally:
            _remove(group)
        return

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))

    yield Limit("RLIMIT_DATA", bound)


def _own(kind: str) -> str:
    """The group that this process is in: a limit is for a part of what that may have."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("memory" in controllers.split(",")) if kind == "cgroup v1" else not controllers:
            return path.lstrip("/")
    return ""


def _join(procs: Path) -> None:
    procs.write_text(str(os.getpid()))


def _remove(group: Path) -> None:
    for _ in range(50):  # its last process may still be ending
        try:
            group.rmdir()
            return
        except OSError:
            sleep(0.1)
