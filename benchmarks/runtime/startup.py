"""Seconds until anything happens: imports, loading an artifact, ``tvm-edge --help``.

Measures, each in fresh processes that take turns: ``import tvm``, ``import tvm`` and then
``tvm_edge`` with its public functions, loading an artifact on TVM's runtime tier, and
``tvm-edge --help``. Needs an installed package (``make demo`` makes one). Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser

ROUNDS = 15

_IMPORT_TVM = "import tvm"
# Lazy names would cost nothing until used: resolve every one that compiling a model touches.
_IMPORT_BOTH = (
    "import tvm, tvm_edge; tvm_edge.compile, tvm_edge.load, tvm_edge.analyze, tvm_edge.devices"
)
_LOAD = "import tvm_edge; tvm_edge.load({path!r})"


def seconds(command: list[str], **environment: str) -> float:
    """Wall-clock seconds of one process."""
    start = perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment}
    )
    return perf_counter() - start


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    Parser("startup", __doc__).parse_args(arguments)
    import tvm_edge

    python = [sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "squeezenet.tvme"
        tvm_edge.compile("zoo:squeezenet1_0", "llvm").export(artifact)
        tier = {"TVM_USE_RUNTIME_LIB": "1"}
        commands = {
            "import tvm": ([*python, _IMPORT_TVM], {}),
            "import tvm and tvm_edge": ([*python, _IMPORT_BOTH], {}),
            "tvm-edge --help": ([str(Path(sys.executable).with_name("tvm-edge")), "--help"], {}),
            "import tvm, runtime tier": ([*python, _IMPORT_TVM], tier),
            "load squeezenet1_0, runtime tier": ([*python, _LOAD.format(path=str(artifact))], tier),
        }
        samples: dict[str, list[float]] = {name: [] for name in commands}
        for command, environment in commands.values():
            seconds(command, **environment)  # file caches warm, byte code written
        for _ in range(ROUNDS):
            for name, (command, environment) in commands.items():
                samples[name].append(seconds(command, **environment))
    medians = {name: round(median(times), 3) for name, times in samples.items()}
    result = {
        "machine": describe_machine(),
        "rounds": ROUNDS,
        "median_seconds": medians,
        "spread_seconds": {
            name: [round(min(times), 3), round(max(times), 3)] for name, times in samples.items()
        },
        "import_tvm_edge_beyond_tvm": round(
            medians["import tvm and tvm_edge"] - medians["import tvm"], 3
        ),
        "bars": {"import_tvm_edge_beyond_tvm": 0.3, "tvm-edge --help": 0.5},
    }
    print(json.dumps(result, indent=2))
