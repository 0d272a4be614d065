"""A compiler phase as data: a list of named passes that can be printed and looked between."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tvm

__all__ = ["Pipeline", "dump"]

_DUMP_VARIABLE = "TVM_EDGE_DUMP"


@dataclass(frozen=True)
class Pipeline:
    """Passes with a name, applied in order.

    Examples
    --------
    >>> print(Pipeline("demo", (tvm.relax.transform.DeadCodeElimination(),)))
    demo
      1. DeadCodeElimination
    """

    name: str
    passes: tuple[tvm.transform.Pass, ...]

    def __str__(self) -> str:
        lines = [f"  {i}. {name}" for i, name in enumerate(self.pass_names(), 1)]
        return "\n".join([self.name, *lines])

    def pass_names(self) -> Iterator[str]:
        """Names of the passes, in order."""
        for each in self.passes:
            yield str(each.info.name)

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Apply every pass; with ``TVM_EDGE_DUMP=dir`` write the module after each."""
        for index, (name, each) in enumerate(zip(self.pass_names(), self.passes, strict=True), 1):
            mod = each(mod)
            dump(mod, f"{self.name}-{index:02d}-{name}")
        return mod


def dump(mod: tvm.IRModule, label: str) -> None:
    """Write `mod` as TVMScript into ``$TVM_EDGE_DUMP``, numbered in the order of writing.

    Does nothing if the variable is not set.
    """
    directory = os.environ.get(_DUMP_VARIABLE)
    if not directory:
        return
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    serial = len(list(folder.glob("*.py")))
    name = re.sub(r"[^\w.-]", "_", label)
    (folder / f"{serial:03d}-{name}.py").write_text(mod.script())
