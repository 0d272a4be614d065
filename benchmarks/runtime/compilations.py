"""Seconds of a compilation, of the next one, and of the first run, beside another commit's.

Each measurement is a process of its own; this checkout and the commit ``--base`` take turns. What
is compiled is run, and every output is compared with the other commit's, to the bit. ``cold`` has
an empty cache of kernels; ``again`` is another process with what that one left there, ``changed``
a third that compiles with ``parallel_fusion=False``, and ``knobs`` one with ``tuning_logs=False``,
by which most convolutions become other kernels; ``--base`` is measured cold alone. ``first`` and
``later`` are milliseconds of the first run and the median of the next five; ``export`` is seconds.
``processor`` is the processor's seconds of the compilation, of all its threads, which other work on
the machine changes less than the wall-clock's.

Networks are names of the zoo or paths of ONNX files. For ``--target opencl`` nothing leaves the
device (``fallback="none"``), and pocl's own cache is as empty as ours.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser, save_json
from benchmarks.common.paths import ROOT
from benchmarks.common.processes import require_child

_NETWORKS = ("resnet50_v1", "mobilenet_v2", "densenet121")
_LATER_RUNS = 5
_WAYS: dict[str, dict[str, Any]] = {
    "cold": {},
    "again": {},
    "changed": {"parallel_fusion": False},
    "knobs": {"tuning_logs": False},
}
"""Options of each compilation, in their order."""


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("compilations", __doc__)
    parser.shared(networks=_NETWORKS, target="llvm", rounds=3, json=None)
    parser.add_argument("--base", metavar="COMMIT", help="commit to compare with; default none")
    options = parser.parse_args(arguments)
    machine = describe_machine()
    print(json.dumps(machine), flush=True)
    with _checkouts(options.base) as sources:
        results = []
        for network in options.networks:
            results += _measure(network, options.target, sources, options.rounds)
            save_json(options.json, {"machine": machine, "results": results})
    print("\n".join(_table(results)))


@contextmanager
def _checkouts(base: str | None) -> Iterator[dict[str, Path]]:
    """Yield the folders that the package is taken from, by name."""
    if base is None:
        yield {"this": ROOT}
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "checkout")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.check_call([*git, "add", "-q", "--detach", str(source), base])
        try:
            built = find_spec("tvm_edge.opencl")
            assert built is not None and built.submodule_search_locations is not None
            for place in built.submodule_search_locations:
                for library in Path(place).glob("*.so"):
                    shutil.copy(library, source / "tvm_edge/opencl")
            yield {base: source, "this": ROOT}
        finally:
            subprocess.check_call([*git, "remove", "--force", str(source)])


def _measure(
    network: str, target: str, sources: dict[str, Path], rounds: int
) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        outputs = set()
        for name, source in sources.items():
            with tempfile.TemporaryDirectory() as cache:
                environment = {
                    "TVM_EDGE_CACHE": f"{cache}/kernels",
                    "TVM_EDGE_OPENCL_CACHE": "0",
                    "POCL_CACHE_DIR": f"{cache}/pocl",
                    # Equal in both, and not of this machine's user.
                    "TVM_EDGE_TUNING_LOGS": f"{cache}/none",
                }
                for way in _WAYS if name == "this" else ["cold"]:
                    row = require_child(
                        __name__, "compile", network, target, way, source, cache, **environment
                    )
                    found.setdefault((name, way), []).append(row)
                    if way != "knobs":  # which add up in another order
                        outputs.add(row["output"])
        if len(outputs) != 1:
            raise SystemExit(f"{network}: the commits, or two runs, do not agree to the bit")
    return [
        {"network": network, "target": target, "commit": name, "way": way, "rounds": rows}
        for (name, way), rows in found.items()
    ]


def _compile(network: str, target: str, way: str, source: str, folder: Path) -> dict[str, Any]:
    """Compile, run and export by the package in the folder `source`."""
    sys.meta_path[:] = [each for each in sys.meta_path if "ScikitBuild" not in type(each).__name__]
    sys.path.insert(0, source)
    warnings.simplefilter("ignore")
    import numpy as np

    import tvm_edge
    from tvm_edge import zoo

    assert Path(tvm_edge.__file__).is_relative_to(source), tvm_edge.__file__
    known = not network.endswith(".onnx")
    model = zoo.build(network) if known else network
    options = {**_WAYS[way], **({"fallback": "none"} if target == "opencl" else {})}
    # What is imported and probed once in a process is no part of it.
    tvm_edge.compile(zoo.build("shapes_ssd"), "llvm", tuning_logs=False)
    start, before = perf_counter(), process_time()
    compiled = tvm_edge.compile(model, target, **options)
    seconds, processor = perf_counter() - start, process_time() - before
    phases = dict(compiled.report.seconds)
    generator = np.random.default_rng(0)
    inputs = {
        each.name: generator.standard_normal(each.shape).astype(each.dtype)
        for each in compiled.inputs
    }
    times = []
    for _ in range(1 + _LATER_RUNS):
        begin = perf_counter()
        outputs = compiled.run(inputs)
        times.append(1e3 * (perf_counter() - begin))
    begin = perf_counter()
    compiled.export(folder / "model.tvme")
    exported = perf_counter() - begin
    digest = hashlib.sha256(b"".join(value.tobytes() for value in outputs.values())).hexdigest()
    return {
        "compile": seconds,
        "processor": processor,
        "phases": phases,
        "first": times[0],
        "later": median(times[1:]),
        "export": exported,
        "output": digest,
    }


def _table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = ("compile, s", "processor, s", "first, ms", "later, ms", "export, s")
    yield f"| network | target | commit | way | {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in results:
        cells = [_spread([each[what] for each in row["rounds"]]) for what in _COLUMNS]
        name = Path(row["network"]).stem
        yield f"| {name} | {row['target']} | {row['commit']} | {row['way']} | {' | '.join(cells)} |"


_COLUMNS = ("compile", "processor", "first", "later", "export")


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} [{min(values):.3g}–{max(values):.3g}]"


JOBS = {"compile": _compile}
