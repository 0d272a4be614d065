"""Models with open dimensions on GPUs: launches recorded for each shape that is run again."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

import tvm_edge
from tests.compiler.steps import lowered as lowered_model
from tests.onnx_models import make_model, random_input, reference, relative_error
from tests.opencl.support import build_shim
from tests.runtime.support import run_python
from tvm_edge import opencl
from tvm_edge.runtime.entry import KERNEL_BY_KERNEL, by_shape, part_sizes

SHAPES = [(1, 4, 8, 8), (1, 4, 9, 17), (2, 4, 12, 5), (1, 4, 16, 16)]


def network(seed: int = 0) -> onnx.ModelProto:
    """Convolutions of an open image; the input once more between them, two results."""
    random = np.random.default_rng(seed)
    nodes, weights, value = [], {}, "data"
    for index in range(4):
        weights[f"w{index}"] = (random.standard_normal((4, 4, 3, 3)) / 6).astype("float32")
        made = onnx.helper.make_node("Conv", [value, f"w{index}"], [f"y{index}"], pads=[1] * 4)
        nodes += [made, onnx.helper.make_node("Relu", [f"y{index}"], [f"z{index}"])]
        value = f"z{index}"
        if index == 1:
            nodes.append(onnx.helper.make_node("Add", [value, "data"], ["sum"]))
            value = "sum"
    nodes.append(onnx.helper.make_node("GlobalAveragePool", [value], ["mean"]))
    return make_model(nodes, {"data": ("n", 4, "h", "w")}, ["mean", "sum"], weights)


@pytest.fixture(scope="module")
def compiled(on_opencl: None) -> tvm_edge.CompiledModel:
    if missing := opencl.command_buffers()["missing"]:
        pytest.skip(missing)
    return tvm_edge.compile(network(), "opencl", fallback="none")


@pytest.fixture(scope="module")
def exported(compiled: tvm_edge.CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.export(tmp_path_factory.mktemp("open") / "network.tvme")


@pytest.fixture
def model(exported: Path) -> tvm_edge.CompiledModel:
    """The model as it is after loading: no shape was run."""
    return tvm_edge.load(exported)


def counts() -> tuple[int, int]:
    """Command buffers recorded and replayed so far."""
    found = opencl.command_buffers()
    return found["recorded"], found["replayed"]


def check(model: tvm_edge.CompiledModel, shape: tuple[int, ...], seed: int = 0) -> None:
    inputs = {"data": random_input(shape, seed)}
    results = model.run(inputs)
    for name, expected in reference(network(), inputs).items():
        assert relative_error(results[name], expected) < 1e-5, (name, shape)


def test_a_shape_is_recorded_when_it_comes_again(model: tvm_edge.CompiledModel) -> None:
    before = counts()
    for shape in SHAPES:
        check(model, shape)
    assert counts() == before
    recorded = []
    # The largest first: shapes that are larger would drop what is recorded.
    for seed in range(3):
        for shape in reversed(SHAPES):
            check(model, shape, seed)
        recorded.append(counts())
    assert recorded[0][0] > before[0]
    assert recorded[0][0] == recorded[1][0] == recorded[2][0]
    assert recorded[1][1] - recorded[0][1] == recorded[2][1] - recorded[1][1] >= len(SHAPES)


def test_on_cuda() -> None:
    """CUDA graphs of each shape; its runtime counts none."""
    if not tvm.runtime.enabled("cuda") or not tvm.device("cuda").exist:
        pytest.skip("no cuda device on this machine")
    model = tvm_edge.compile(network(), "cuda", fallback="none")
    for seed in range(4):
        for shape in SHAPES:
            check(model, shape, seed)
    assert set(model._session.recorded("main")) == {(s,) for s in SHAPES}


def test_results_are_the_callers(model: tvm_edge.CompiledModel) -> None:
    """No later run changes them, of this shape or another."""
    runs = [(shape, seed) for seed in range(4) for shape in SHAPES]
    inputs = [{"data": random_input(shape, seed)} for shape, seed in runs]
    results = [model.run(each, device_outputs=True) for each in inputs]
    for each, result in zip(inputs, results, strict=True):
        for name, expected in reference(network(), each).items():
            assert relative_error(result[name].numpy(), expected) < 1e-5


def test_a_larger_shape_replaces_the_memory_of_all(model: tvm_edge.CompiledModel) -> None:
    for shape in SHAPES * 3:
        check(model, shape)
    for _ in range(3):
        check(model, (1, 4, 40, 40))
    before = counts()[0]
    for shape in SHAPES:
        check(model, shape, 1)  # each is recorded once more, at once
    assert counts()[0] >= before + len(SHAPES)
    before = counts()[0]
    for shape in [*SHAPES, (1, 4, 40, 40)]:
        check(model, shape, 2)
    assert counts()[0] == before


def test_no_elements(model: tvm_edge.CompiledModel) -> None:
    before = counts()
    for _ in range(3):
        assert model.run({"data": np.zeros((0, 4, 8, 8), "float32")})["mean"].shape == (0, 4, 1, 1)
    assert counts() == before
    check(model, SHAPES[0])


def test_warm_up_leaves_nothing_to_record(model: tvm_edge.CompiledModel) -> None:
    model.warmup()
    before = counts()
    for seed in range(2):
        shape = tuple(dim if isinstance(dim, int) else 256 for dim in model.inputs[0].shape)
        check(model, (1, *shape[1:]), seed)
    after = counts()
    assert after[0] == before[0] and after[1] > before[1]


MOST = 32  # recordings kept (native/csrc/shape_recordings.cc)


def test_recordings_are_bounded(model: tvm_edge.CompiledModel) -> None:
    """So is their memory: that of the largest shape, however many come."""
    widths = range(4, 4 + MOST + 4)
    live = []
    for _ in range(2):
        for width in reversed(widths):
            for seed in range(2):
                check(model, (1, 4, 8, width), seed)
        live.append(opencl.memory()["live"])
    assert max(live) <= live[0] + 2
    assert len(model._session.recorded("main")) <= MOST
    before = counts()
    for width in range(6, 3, -1):  # the last that ran
        check(model, (1, 4, 8, width), 9)
    after = counts()
    assert after[0] == before[0] and after[1] > before[1]


def test_shapes_that_take_turns_are_not_recorded_each_time(model: tvm_edge.CompiledModel) -> None:
    """More shapes than recordings: most runs launch kernel by kernel."""
    shapes = [(1, 4, 8, width) for width in range(MOST + 6, 4, -1)]
    for shape in shapes * 2:
        check(model, shape)
    before = counts()[0]
    for seed in range(2):
        for shape in shapes:
            check(model, shape, seed)
    assert counts()[0] == before


def test_four_threads_and_two_models(exported: Path) -> None:
    models = [tvm_edge.load(exported), tvm_edge.load(exported)]
    inputs = [{"data": random_input(shape, 5)} for shape in SHAPES]
    expected = [reference(network(), each) for each in inputs]
    before = counts()

    def work(number: int) -> None:
        for step in range(24):
            at = (number + step * 3) % len(SHAPES)
            results = models[number % 2].run(inputs[at])
            for name, value in expected[at].items():
                assert relative_error(results[name], value) < 1e-5

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert counts()[1] > before[1]


def test_models_of_one_artifact(exported: Path) -> None:
    """All together, and one by itself; each with lengths of its own."""
    both = tvm_edge.compile({"a": network(0), "b": network(1)}, "opencl", fallback="none")
    values = {"a/data": random_input((1, 4, 9, 7)), "b/data": random_input((2, 4, 6, 8), 1)}
    parts = {name: {"data": values[f"{name}/data"]} for name in "ab"}
    wanted = {name: reference(network(seed), parts[name]) for seed, name in enumerate("ab")}
    before = counts()
    for _ in range(3):
        found = [both.run(values), both.run({"b/data": values["b/data"]}, models=["b"])]
        for results, names in zip(found, ("ab", "b"), strict=True):
            for name in names:
                for output, value in wanted[name].items():
                    assert relative_error(results[f"{name}/{output}"], value) < 1e-5
    assert counts()[1] >= before[1] + 4


def test_kernels_on_the_cpu_between_those_that_are_recorded(compiled: None) -> None:
    model = tvm_edge.compile(network(), "opencl", fallback=["Add"])
    assert len(model.report.partitions) > 1
    for seed in range(3):
        for shape in SHAPES:
            check(model, shape, seed)
    before = counts()
    for shape in SHAPES:
        check(model, shape, 3)
    after = counts()
    assert after[0] == before[0] and after[1] >= before[1] + len(SHAPES)


def test_the_profile_has_every_kernel(compiled: tvm_edge.CompiledModel) -> None:
    inputs = {"data": random_input(SHAPES[0])}
    names = [kernel.name for kernel in compiled.report.kernels]
    for _ in range(3):
        compiled.run(inputs)
    assert [row.name for row in compiled.profile(inputs).kernels] == names


SCARCE = """
import ctypes, json, os, sys
import numpy as np
import tvm_edge
from tvm_edge import opencl

model, other = tvm_edge.load(sys.argv[1]), tvm_edge.load(sys.argv[1])
shim = ctypes.CDLL(os.environ["TVM_EDGE_OPENCL_LIBRARY"])
results = {}
def run(side, model=model):
    x = np.random.default_rng(side).standard_normal((1, 4, side, side)).astype("float32")
    results.setdefault(side, set()).add(model.run({"data": x})["mean"].tobytes().hex())
def recorded():
    return opencl.command_buffers()["recorded"]
def scarce(nth, times):
    opencl.release_memory()
    shim.shim_clear()
    for call in (b"clCreateBuffer", b"clSVMAlloc"):
        shim.shim_fault(call, nth, times, -4)

for _ in range(3):
    run(64)
    run(64, other)
told = {}
# Not the memory of a new input, until the recordings of both models have gone.
scarce(1, 2)
run(150)
shim.shim_clear()
before = recorded()
run(64)
run(64, other)
told["both dropped"] = recorded() >= before + 2
# Not that of a recording, which is put off; the run is not.
before = recorded()
scarce(2, 4)
run(150)
shim.shim_clear()
told["not recorded"] = recorded() == before
for _ in range(2):
    run(64)
told["recorded again"] = recorded() > before
# Not that of a new input, and nothing to drop.
opencl.release_memory()
scarce(1, 4)
try:
    run(160)
except MemoryError as error:
    told["named"] = "out of memory" in str(error)
shim.shim_clear()
for side in (160, 150, 64):
    run(side)
told["same"] = all(len(each) == 1 for each in results.values())
print(json.dumps(told))
"""


def test_recordings_make_way_where_memory_is_short(exported: Path, tmp_path: Path) -> None:
    if not (shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("the stand-in for libOpenCL.so needs a C compiler")
    environment = {
        "TVM_EDGE_OPENCL_LIBRARY": str(build_shim(tmp_path, masked=False)),
        "SHIM_REAL": opencl.status()["library"],
    }
    told = run_python(SCARCE, exported, environment=environment)
    what = ("both dropped", "not recorded", "recorded again", "named", "same")
    assert json.loads(told.splitlines()[-1]) == dict.fromkeys(what, True)


# ------------------------------------------------------------------------------- without a device


def functions(model: onnx.ModelProto, target: str) -> dict[str, relax.Function]:
    found = lowered_model(model, target, "none", host="llvm").module.functions_items()
    return {g.name_hint: f for g, f in found if isinstance(f, relax.Function)}


@pytest.mark.parametrize(
    ("target", "run"),
    [
        ("mali-g76", "tvm_edge.opencl.run_or_capture"),
        ("jetson-orin-nano", "vm.builtin.cuda_graph.run_or_capture"),
    ],
)
def test_regions_are_of_one_shape(target: str, run: str) -> None:
    """``main`` records nothing, and needs no memory of its caller."""
    named = functions(network(), target)
    assert run not in str(named["main"]) and KERNEL_BY_KERNEL not in named
    recorded = named[by_shape("main")]
    assert str(recorded).count(run) == 1
    parts = len(recorded.params) - len(named["main"].params)
    sizes = named[part_sizes("main")]
    assert parts == sizes.ret_ty.ndim >= 2
    assert len(sizes.params) == 1


def test_fixed_shapes_have_none_of_it() -> None:
    fixed = make_model(
        [onnx.helper.make_node("Relu", ["data"], ["y"])], {"data": (1, 4, 8, 8)}, ["y"], {}
    )
    assert not {by_shape("main"), part_sizes("main")} & set(functions(fixed, "mali-g76"))


def test_a_model_of_one_launch_has_none_of_it() -> None:
    single = make_model(
        [onnx.helper.make_node("Relu", ["data"], ["y"])], {"data": (1, 4, "h", 8)}, ["y"], {}
    )
    assert by_shape("main") not in functions(single, "mali-g76")
