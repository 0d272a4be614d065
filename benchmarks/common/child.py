"""One job of a benchmark, in a process of its own: see :mod:`benchmarks.common.processes`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

__all__: list[str] = []


def main() -> None:
    """Do the job that the command line names, and print what it returns."""
    module, job, *arguments, folder = sys.argv[1:]
    print(json.dumps(import_module(module).JOBS[job](*arguments, Path(folder))))


if __name__ == "__main__":
    main()
