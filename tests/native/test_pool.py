"""The worker pool under compiled kernels."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import helper
from tvm import te
from tvm.runtime.vm import VirtualMachine
from tvm.s_tir import Schedule

import tvm_edge
from tests.marks import in_full
from tests.native.launches import launched_in_pieces
from tests.onnx_models import make_model, random_input
from tests.runtime.support import at_once, run_python, until, wide_conv
from tvm_edge import InputError
from tvm_edge.native import kernels_on_pool, pool_counts, use_pool
from tvm_edge.runtime.artifact import read_artifact
from tvm_edge.runtime.info import read_info

WIDE = (1, 32, 56, 56)
IMAGE = {"data": random_input(WIDE)}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pool") / "wide.tvme"
    return tvm_edge.compile(wide_conv(), "llvm", num_threads=2).export(path)


def launches_of(model: tvm_edge.CompiledModel) -> int:
    before = pool_counts()["launches"]
    model.run(IMAGE)
    return pool_counts()["launches"] - before


def test_kernels_of_models_use_it(artifact: Path) -> None:
    """Code in memory and code from a file."""
    assert launches_of(tvm_edge.compile(wide_conv(), "llvm", num_threads=2)) > 0
    assert launches_of(tvm_edge.load(artifact, num_threads=2)) > 0


def zeros_by_two(model: tvm_edge.CompiledModel, inputs: dict[str, np.ndarray]) -> bool:
    """Run a model whose results are zero; return whether a worker was seen to help."""
    before = pool_counts()["helped"]
    assert not model.run(inputs)["y"].any()
    return pool_counts()["helped"] > before


def test_subnormal_numbers_are_zero_in_kernels_alone() -> None:
    """The calling thread's kernels and the workers'; the caller has its setting back."""
    shape = (1 << 20,)  # so much that a worker helps
    nodes = [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Mul", ["c", "b"], ["y"])]
    model = make_model(nodes, {"a": shape, "b": shape}, ["y"])
    compiled = tvm_edge.compile(model, "llvm", num_threads=2)
    for small, factor in ((1e-39, 1e6), (1e-30, 1e-9)):  # an operand, and a result in between
        a, b = np.full(shape, small, "float32"), np.full(shape, factor, "float32")
        until(partial(zeros_by_two, compiled, {"a": a, "b": b}))  # on a busy machine not at once
        assert (a[:100] * b[:100]).all()
    with pytest.raises(InputError):
        compiled.run({"a": np.zeros(3, "float32"), "b": np.zeros(shape, "float32")})
    assert np.full(100, 1e-39, "float32").sum() > 0


def test_whatever_runs_a_model_uses_it(artifact: Path) -> None:
    model = tvm_edge.load(artifact, num_threads=2)
    for action in (
        lambda: model.benchmark(IMAGE, repeat=1),
        lambda: model.profile(IMAGE, repeat=1),
        lambda: model.run_async(IMAGE).result(),
        lambda: list(model.stream([IMAGE])),
        model.warmup,
    ):
        before = pool_counts()["launches"]
        action()
        assert pool_counts()["launches"] > before


def test_code_of_others_keeps_tvms_pool(artifact: Path) -> None:
    tvm_edge.load(artifact, num_threads=2).run(IMAGE)
    function = parallel_add()
    before = pool_counts()["launches"]
    x = np.arange(64, dtype="float32")
    out = tvm.runtime.tensor(np.zeros_like(x))
    function(tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), x + 1)
    assert pool_counts()["launches"] == before


def test_results_do_not_depend_on_the_number_of_threads(artifact: Path) -> None:
    expected = tvm_edge.load(artifact, num_threads=1).run(IMAGE)["result"]
    model = tvm_edge.load(artifact, num_threads=2)
    for _ in range(200):
        np.testing.assert_array_equal(model.run(IMAGE)["result"], expected)


def test_models_share_workers(artifact: Path) -> None:
    code = """
import json, sys, threading
import numpy as np
import tvm_edge
from tvm_edge.native import pool_counts
models = [tvm_edge.load(sys.argv[1], num_threads=2) for _ in range(4)]
def run(model):
    for _ in range(20):
        model.run({"data": np.zeros((1, 32, 56, 56), "float32")})
threads = [threading.Thread(target=run, args=(model,)) for model in models * 2]
for t in threads: t.start()
for t in threads: t.join()
print(json.dumps(pool_counts()))
"""
    found = json.loads(run_python(code, artifact, environment={"TVM_USE_RUNTIME_LIB": "1"}))
    assert found["workers"] <= 1, "one worker beside each caller, and callers need none"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU has no workers")
def test_a_worker_takes_part(artifact: Path) -> None:
    code = """
import sys
import numpy as np
import tvm_edge
from tvm_edge.native import pool_counts
model = tvm_edge.load(sys.argv[1], num_threads=2)
for _ in range(2000):
    model.run({"data": np.zeros((1, 32, 56, 56), "float32")})
    if pool_counts()["helped"]:
        break
print(pool_counts()["helped"] > 0)
"""
    assert run_python(code, artifact).split() == ["True"]


@pytest.mark.parametrize("value", ["-1", "fast", *in_full("1.5", "99999999")])
def test_bad_spin(artifact: Path, value: str) -> None:
    code = "import sys, tvm_edge\ntvm_edge.load(sys.argv[1]).warmup()"
    with pytest.raises(AssertionError, match="TVM_EDGE_SPIN is"):
        run_python(code, artifact, environment={"TVM_EDGE_SPIN": value})


def test_no_worker_may_be_started(artifact: Path) -> None:
    """A limit of processes: the calling thread runs everything, and says so once."""
    code = """
import os, resource, sys
import numpy as np
import tvm_edge
model = tvm_edge.load(sys.argv[1], num_threads=2)
if os.getuid() == 0:
    os.setuid(65534)  # root has no limit
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
for _ in range(3):
    out = model.run({"data": np.ones((1, 32, 56, 56), "float32")})["result"]
from tvm_edge.native import pool_counts
print(out.shape, pool_counts()["workers"])
"""
    # The session, and with it the pool, is made at the first run where a model is compiled here.
    compiling = code.replace(
        "tvm_edge.load(sys.argv[1], num_threads=2)",
        "tvm_edge.compile(__import__('tests.runtime.support', fromlist=['x']).wide_conv(), "
        "'llvm', num_threads=2)",
    )
    del artifact
    assert run_python(compiling).split("\n")[0] == "(1, 64, 56, 56) 0"


@pytest.mark.parametrize("cpus", [[10**4], [0, -1], [], "0", [0.5], [True], 3])
def test_bad_cpus(artifact: Path, cpus: Any) -> None:
    with pytest.raises(InputError, match="cpus") as caught:
        tvm_edge.load(artifact, cpus=cpus)
    assert caught.value.name == "cpus"
    assert "this process may use" in str(caught.value)


def test_kept_to_cpus(artifact: Path) -> None:
    """Workers for good, the calling thread for the run."""
    allowed = sorted(os.sched_getaffinity(0))
    code = """
import json, os, sys, time
import numpy as np
import tvm_edge
cpus = json.loads(sys.argv[2])
model = tvm_edge.load(sys.argv[1], cpus=cpus)
before = os.sched_getaffinity(0)
model.run({"data": np.ones((1, 32, 56, 56), "float32")})
assert os.sched_getaffinity(0) == before
tasks = {int(t): open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")}
workers = [t for t, name in tasks.items() if name.startswith("tvm-edge-")]
masks = [os.sched_getaffinity(t) for t in workers]
assert all(mask <= set(cpus) for mask in masks), masks
# A worker that was woken beside the calling thread takes all of them again when it comes up.
end = time.monotonic() + 20
while any(os.sched_getaffinity(t) != set(cpus) for t in workers) and time.monotonic() < end:
    time.sleep(0.01)
print(len(workers), all(os.sched_getaffinity(t) == set(cpus) for t in workers))
"""
    chosen = allowed[-2:]
    found = run_python(code, artifact, json.dumps(chosen)).split()
    assert found == [str(len(chosen) - 1), "True"]


def test_more_threads_than_cpus_are_taken_as_that_many(
    artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cpus = len(os.sched_getaffinity(0))
    found = tvm_edge.load(artifact, num_threads=cpus + 3).benchmark(IMAGE, repeat=1)
    assert found.num_threads == cpus


def test_cpus_that_shrink_in_a_run(artifact: Path) -> None:
    """All threads of the process on one CPU while it runs: slower, and right."""
    model = tvm_edge.load(artifact, num_threads=2)
    expected = model.run(IMAGE)["result"]
    before = os.sched_getaffinity(0)
    one = min(before)

    def shrink_and_grow() -> bool:
        for chosen in ({one}, before) * 10:
            for task in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(task), chosen)
        return True

    def run() -> bool:
        return all(np.array_equal(model.run(IMAGE)["result"], expected) for _ in range(50))

    try:
        assert all(at_once(run, shrink_and_grow))
    finally:
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), before)


# ----------------------------------------------------------------- what kernels may ask of a pool


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("pieces", [1, 3, 8, 61])
def test_kernels_run_in_any_pieces(pieces: int, ssd: Path) -> None:
    """None needs two pieces at the same time, or an order, and each piece is whole."""
    image = random_input((1, 3, 128, 128))
    expected = tvm_edge.load(ssd, num_threads=1).run({"image": image})
    artifact = read_artifact(ssd)
    names = [output.name for output in read_info(artifact).outputs]
    library = ssd.with_name(f"{pieces}.so")
    library.write_bytes(artifact.code())
    with launched_in_pieces(pieces):
        machine = VirtualMachine(tvm_ffi.load_module(library), tvm.cpu())
    weights = tvm_ffi.Array([tvm.runtime.tensor(weight) for weight in artifact.weights])
    outputs = machine["main"](tvm.runtime.tensor(image), weights)
    assert len(names) > 1 and set(names) == set(expected)
    for name, output in zip(names, outputs, strict=True):
        np.testing.assert_array_equal(output.numpy(), expected[name], err_msg=name)


@pytest.fixture(scope="module")
def ssd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector: convolutions in all their forms, sorts, suppression."""
    path = tmp_path_factory.mktemp("ssd") / "ssd.tvme"
    return tvm_edge.compile("zoo:shapes_ssd", "llvm").export(path)


def test_a_barrier_is_refused() -> None:
    """It would wait for pieces that nobody has begun."""
    use_pool(2, [], 2, 50)
    with kernels_on_pool():
        function = parallel_add(barrier=True)
    tensors = [tvm.runtime.tensor(np.zeros(64, "float32")) for _ in range(2)]
    with pytest.raises(RuntimeError, match="barrier"):
        function(*tensors)


def parallel_add(barrier: bool = False) -> Any:
    """A kernel that TVM compiles, whose threads wait for each other at its end."""
    x = te.placeholder((64,), "float32", "x")
    y = te.compute((64,), lambda i: x[i] + 1.0, "y")
    schedule = Schedule(te.create_prim_func([x, y]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    outer, inner = schedule.split(loop, [1, 64])
    schedule.parallel(inner)
    if barrier:
        schedule.annotate(outer, "pragma_parallel_launch_point", 1)
        schedule.annotate(inner, "pragma_parallel_barrier_when_finish", 1)
    return tvm.compile(schedule.mod, "llvm")["main"]
