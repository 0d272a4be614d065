"""The OpenCL runtime beside the driver's floor and CUDA: launches, copies, start, endurance.

Measures on ``tvm.opencl(0)`` (``TVM_EDGE_OPENCL`` chooses it) and, where there is one, on
``tvm.cuda(0)`` through the same TVM, in processes that take turns:

- launch: a kernel of 1,024 additions, pipelined (host time per launch, queue kept full) and waited
  for; the floor is a C++ loop over the driver's own calls (``opencl_floor.cc``), and the runtime's
  own part is what is left when a launch does nothing (``opencl_null.c``);
- copies: 1 KiB, 1 MiB, 64 MiB to and from the device, pageable memory;
- start: a process that loads the compiled kernels of ``zoo:squeezenet1_0`` and builds them from
  source, has them in the program cache, or leaves them alone ("nothing to build"). The drivers' own
  caches are off (``POCL_KERNEL_CACHE=0``, ``CUDA_CACHE_DISABLE=1``);
- endurance: 10,000 runs, 1,000 cycles of loading and unloading, 8 threads × 1,000 launches, with
  device bytes and the process's resident memory before and after.

Every timed kernel's result is checked. Prints one JSON object; takes about two minutes.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser
from benchmarks.common.paths import ROOT
from benchmarks.common.process_memory import status_bytes
from benchmarks.common.processes import Job, require_child

ROUNDS = 5
LAUNCHES = 20_000
COPY_BYTES = (1 << 10, 1 << 20, 1 << 26)
NETWORK = "zoo:squeezenet1_0"
_SOURCES = ROOT / "tvm_edge" / "opencl" / "csrc"
_NO_DRIVER_CACHE = {"POCL_KERNEL_CACHE": "0", "CUDA_CACHE_DISABLE": "1"}


# ------------------------------------------------------------------ what the child processes do


def _add_kernel(api: str) -> Any:
    """``y = x + 1`` for 1,024 elements, as TVM builds it for `api`."""
    import tvm
    from tvm import te

    x = te.placeholder((1024,), name="x")
    y = te.compute((1024,), lambda i: x[i] + 1.0, name="y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    blocks, threads = sch.split(loop, [None, 64])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(threads, "threadIdx.x")
    return tvm.compile(sch.mod, tvm.target.Target(api, host="llvm"))


def _measure_launch(api: str, _folder: Path) -> dict[str, float]:
    import numpy as np
    import tvm

    device = tvm.device(api, 0)
    built = _add_kernel(api)
    x = tvm.runtime.tensor(np.arange(1024, dtype="float32"), device)
    y = tvm.runtime.empty((1024,), "float32", device)
    # The CPU's timer makes TVM loop in C++ without touching the device's.
    loop = built.mod.time_evaluator("main", tvm.cpu(0), number=LAUNCHES, repeat=1)
    loop(x, y)
    device.sync()
    start = perf_counter()
    loop(x, y)
    device.sync()
    pipelined = (perf_counter() - start) / (LAUNCHES + 1)
    waits = 2000
    start = perf_counter()
    for _ in range(waits):
        built(x, y)
        device.sync()
    waited = (perf_counter() - start) / waits
    timed = built.mod.time_evaluator("main", device, number=2000, repeat=3)(x, y).median
    np.testing.assert_array_equal(y.numpy(), np.arange(1024) + 1)
    return {
        "pipelined_us": pipelined * 1e6,
        "waited_for_from_python_us": waited * 1e6,
        "device_timer_us": timed * 1e6,
    }


def _measure_alone(_folder: Path) -> dict[str, float]:
    import numpy as np
    import tvm

    device = tvm.opencl(0)
    built = _add_kernel("opencl")
    x = tvm.runtime.tensor(np.zeros(1024, "float32"), device)
    y = tvm.runtime.empty((1024,), "float32", device)
    loop = built.mod.time_evaluator("main", tvm.cpu(0), number=LAUNCHES, repeat=1)
    loop(x, y)
    start = perf_counter()
    loop(x, y)
    return {"runtime_us": (perf_counter() - start) / (LAUNCHES + 1) * 1e6}


def _measure_copies(api: str, _folder: Path) -> dict[str, float]:
    import numpy as np
    import tvm

    device = tvm.device(api, 0)
    result = {}
    for size in COPY_BYTES:
        host = np.random.default_rng(size).random(size // 4, dtype="float32")
        tensor = tvm.runtime.empty(host.shape, "float32", device)
        repeat = max(5, min(500, (1 << 28) // size))
        to = functools.partial(tensor.copyfrom, host)
        for name, copy in (("to", to), ("from", tensor.numpy)):
            copy()
            start = perf_counter()
            for _ in range(repeat):
                copy()
            result[f"{name}_{size}_us"] = (perf_counter() - start) / repeat * 1e6
        np.testing.assert_array_equal(tensor.numpy(), host)
    return result


def _measure_start(library: str, build: str, _folder: Path) -> dict[str, float]:
    begin = perf_counter()
    import tvm
    import tvm_ffi

    from tvm_edge import opencl

    imported = perf_counter()
    module = tvm_ffi.load_module(library)
    device = tvm.opencl(0)
    tvm.runtime.empty((1024,), "float32", device)
    device.sync()
    opened = perf_counter()
    if build == "build":
        opencl.build(module)
    built = perf_counter()
    stats = opencl.program_stats()
    return {
        "import_s": imported - begin,
        "open_s": opened - imported,
        "programs_s": built - opened,
        "from_source": stats["built"],
        "from_cache": stats["from_disk"],
    }


def _measure_endurance(kind: str, library: str, _folder: Path) -> dict[str, int]:
    import threading

    import numpy as np
    import tvm
    import tvm_ffi

    from tvm_edge import opencl

    device = tvm.opencl(0)
    built = _add_kernel("opencl")

    def run(times: int) -> None:
        x = tvm.runtime.tensor(np.arange(1024, dtype="float32"), device)
        y = tvm.runtime.empty((1024,), "float32", device)
        for _ in range(times):
            built(x, y)
        np.testing.assert_array_equal(y.numpy(), np.arange(1024) + 1)

    def load() -> None:
        # TVM's own load_module keeps every module for the life of the process.
        module = tvm_ffi.load_module(library, keep_module_alive=False)
        opencl.build(module)

    def threads() -> None:
        workers = [threading.Thread(target=run, args=(1000,)) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    work: dict[str, tuple[Callable[[], None], int]] = {
        "10000_runs": (lambda: run(1), 10_000),
        "1000_loads": (load, 1_000),
        "8_threads_x_1000": (threads, 1),
    }
    action, times = work[kind]
    for _ in range(max(1, times // 100)):
        action()
    opencl.release_memory()
    before, resident = opencl.memory(), status_bytes()["VmRSS"]
    half = 0
    for i in range(times):
        action()
        if i == times // 2:
            half = status_bytes()["VmRSS"]
    opencl.release_memory()
    after = opencl.memory()
    end = status_bytes()["VmRSS"]
    return {
        "device_bytes_before": before["in_use"],
        "device_bytes_after": after["in_use"],
        "resident_growth_bytes": end - resident,
        "of_which_in_the_second_half": end - half if times > 1 else 0,
    }


# ------------------------------------------------------------------------ what the parent does


def _spread(values: list[float], digits: int = 2) -> list[float]:
    """Median, smallest, largest."""
    return [round(value, digits) for value in (median(values), min(values), max(values))]


def _in_turns(job: str, apis: list[str], folder: Path) -> dict[str, dict[str, list[float]]]:
    samples: dict[str, dict[str, list[float]]] = {api: {} for api in apis}
    for _ in range(ROUNDS):
        for api in apis:
            for name, value in require_child(__name__, job, api, folder).items():
                samples[api].setdefault(name, []).append(value)
    return {
        api: {name: _spread(values) for name, values in by_name.items()}
        for api, by_name in samples.items()
    }


def _floor(folder: Path, device: dict[str, Any]) -> list[float]:
    program = folder / "opencl_floor"
    sources = [_SOURCES / "library.cc", Path(__file__).with_name("opencl_floor.cc")]
    compiler = ["g++", "-O2", "-std=c++17", f"-I{_SOURCES}"]
    subprocess.run([*compiler, *sources, "-o", program, "-ldl"], check=True)
    which = (device["platform_index"], device["device_index"], LAUNCHES)
    # With the environment that this process was given: what NVIDIA's driver adds to it makes the
    # driver fail in a child.
    run = functools.partial(subprocess.run, check=True, stdout=subprocess.PIPE, env={**os.environ})
    return _spread([float(run([program, *map(str, which)]).stdout) for _ in range(ROUNDS)])


def _alone(folder: Path) -> list[float]:
    """Microseconds of a launch that TVM and the runtime take."""
    from tvm_edge import opencl

    library = folder / "libnull.so"
    real = opencl.status()["library"]
    path = ["-l:" + real] if "/" not in real else [real]
    command = ["gcc", "-O2", "-shared", "-fPIC", str(Path(__file__).with_name("opencl_null.c"))]
    subprocess.run([*command, "-o", str(library), "-Wl,--no-as-needed", *path], check=True)
    changes = {"TVM_EDGE_OPENCL_LIBRARY": str(library), "TVM_EDGE_OPENCL_IN_FLIGHT": str(10**9)}
    rounds = [require_child(__name__, "alone", folder, **changes) for _ in range(ROUNDS)]
    return _spread([found["runtime_us"] for found in rounds])


def _library_of_network(folder: Path) -> Path:
    """The compiled network's shared library, with its OpenCL kernels inside."""
    import tvm_edge

    artifact = folder / "network.tvme"
    tvm_edge.compile(NETWORK, "opencl").export(artifact)
    with zipfile.ZipFile(artifact) as archive:
        return Path(archive.extract("library.so", folder))


def _start(library: Path, folder: Path) -> dict[str, Any]:
    cache = folder / "cache"
    kinds = {
        "first": ("build", "empty"),
        "second": ("build", str(cache)),
        "nothing_to_build": ("leave", str(cache)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    programs: dict[str, list[float]] = {name: [] for name in kinds}
    tier = {**_NO_DRIVER_CACHE, "TVM_USE_RUNTIME_LIB": "1"}
    fill = {"TVM_EDGE_OPENCL_CACHE": str(cache)}
    require_child(__name__, "start", library, "build", folder, **tier, **fill)
    for i in range(ROUNDS):
        for name, (build, folder_name) in kinds.items():
            if name == "first" and i >= 2:
                continue  # minutes on some drivers
            where = str(folder / f"empty{i}") if folder_name == "empty" else folder_name
            job, environment = ("start", library, build, folder), {"TVM_EDGE_OPENCL_CACHE": where}
            start = perf_counter()
            found = require_child(__name__, *job, **tier, **environment)
            seconds[name].append(perf_counter() - start)
            programs[name].append(found["programs_s"])
            if name == "second":
                assert found["from_source"] == 0 and found["from_cache"] > 0, found
    return {
        "process_seconds": {name: _spread(values, 3) for name, values in seconds.items()},
        "of_which_programs": {name: _spread(values, 3) for name, values in programs.items()},
        "second_over_nothing_to_build": round(
            median(seconds["second"]) / median(seconds["nothing_to_build"]), 3
        ),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    Parser("opencl_runtime", __doc__).parse_args(arguments)
    import tvm

    from tvm_edge import opencl

    status = opencl.status()
    used = next((device for device in status["devices"] if device["used"]), None)
    if used is None:
        raise SystemExit(f"no OpenCL device: {status['error']}")
    apis = ["opencl", *(["cuda"] if tvm.cuda(0).exist else [])]
    result: dict[str, Any] = {"machine": describe_machine(), "device": used}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        floor = _floor(folder, used)
        launch = _in_turns("launch", apis, folder)
        launch["driver_floor"] = {"pipelined_us": floor}
        launch["runtime_alone"] = {"pipelined_us": _alone(folder)}
        result["launch"] = launch
        if "cuda" in apis:
            result["launch_over_cuda"] = round(
                launch["opencl"]["pipelined_us"][0] / launch["cuda"]["pipelined_us"][0], 3
            )
        result["copies"] = _in_turns("copies", apis, folder)
        library = _library_of_network(folder)
        result["start"] = _start(library, folder)
        result["endurance"] = {
            kind: require_child(__name__, "endurance", kind, library, folder)
            for kind in ("10000_runs", "1000_loads", "8_threads_x_1000")
        }
    print(json.dumps(result, indent=2))


JOBS: dict[str, Job] = {
    "launch": _measure_launch,
    "alone": _measure_alone,
    "copies": _measure_copies,
    "start": _measure_start,
    "endurance": _measure_endurance,
}
