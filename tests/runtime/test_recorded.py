"""Models whose kernels the OpenCL driver records: the same results, whatever the driver can."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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
from tvm_edge.compiler import pipeline
from tvm_edge.relay_passes.ir.copy_functions import HAND_OVER, READ, WRITE
from tvm_edge.relay_passes.ir.expressions import is_call
from tvm_edge.runtime.entry import KERNEL_BY_KERNEL

SHAPE = (1, 8, 12, 12)
COPY = "runtime.TVMTensorCopyFromTo"
OURS = "tvm_edge.opencl.run_or_capture"


def network(seed: int = 0) -> onnx.ModelProto:
    """Convolutions, the input once more between them, a result of the middle and a view as results.

    The launches before and after the second reading of the input are recorded apart.
    """
    random = np.random.default_rng(seed)
    nodes, weights, value = [], {}, "data"
    for index in range(8):
        weights[f"w{index}"] = (random.standard_normal((8, 8, 3, 3)) / 8).astype("float32")
        made = onnx.helper.make_node("Conv", [value, f"w{index}"], [f"y{index}"], pads=[1] * 4)
        nodes += [made, onnx.helper.make_node("Relu", [f"y{index}"], [f"z{index}"])]
        value = f"z{index}"
        if index == 3:
            nodes.append(onnx.helper.make_node("Add", [value, "data"], ["sum"]))
            value = "sum"
    weights["shape"] = np.array([1, -1], "int64")
    nodes.append(onnx.helper.make_node("Reshape", [value, "shape"], ["flat"]))
    return make_model(nodes, {"data": SHAPE}, ["flat", "sum"], weights)


def joined() -> onnx.ModelProto:
    """A concatenation whose last slice is written beside the first kernel, the other by a region.

    Once the two that read the input are one launch, which nothing records, what is left between it
    and the last has no result of its own.
    """
    random = np.random.default_rng(0)
    nodes, weights = [], {}

    def convolve(value: str, name: str, channels: int = 32) -> str:
        weights[f"w_{name}"] = random.standard_normal((32, channels, 1, 1), "float32") / 8
        nodes.append(onnx.helper.make_node("Conv", [value, f"w_{name}"], [name]))
        return name

    second = convolve(convolve(convolve("data", "first"), "middle"), "second")
    nodes.append(
        onnx.helper.make_node("Concat", [second, convolve("data", "beside")], ["all"], axis=1)
    )
    return make_model(nodes, {"data": (1, 32, 16, 16)}, [convolve("all", "out", 64)], weights)


@pytest.fixture(scope="module")
def compiled(on_opencl: None) -> tvm_edge.CompiledModel:
    return tvm_edge.compile(network(), "opencl", fallback="none")


@pytest.fixture(scope="module")
def exported(compiled: tvm_edge.CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.export(tmp_path_factory.mktemp("recorded") / "network.tvme")


@pytest.fixture
def records(on_opencl: None) -> None:
    """Skips where the driver does not record."""
    if missing := opencl.command_buffers()["missing"]:
        pytest.skip(missing)


def test_a_recorded_model_reads_new_inputs(compiled: tvm_edge.CompiledModel) -> None:
    """And no result is changed by a later run."""
    inputs = [{"data": random_input(SHAPE, seed)} for seed in range(5)]
    results = [compiled.run(each, device_outputs=True) for each in inputs]
    for each, result in zip(inputs, results, strict=True):
        for name, expected in reference(network(), each).items():
            assert relative_error(result[name].numpy(), expected) < 1e-5


def test_that_it_is_recorded(compiled: tvm_edge.CompiledModel, records: None) -> None:
    compiled.warmup()
    before = opencl.command_buffers()
    for _ in range(3):
        compiled.run({"data": random_input(SHAPE)})
    after = opencl.command_buffers()
    assert after["replayed"] - before["replayed"] >= 3
    assert (after["plain"], after["recorded"]) == (before["plain"], before["recorded"])


def test_that_a_model_on_two_devices_is_recorded(on_opencl: None, records: None) -> None:
    """The runs of kernels between those of the CPU, which see what was copied last."""
    model = tvm_edge.compile(network(), "opencl", fallback=["Add"])
    model.warmup()
    before = opencl.command_buffers()
    inputs = [{"data": random_input(SHAPE, seed)} for seed in range(3)]
    results = [model.run(each, device_outputs=True) for each in inputs]
    after = opencl.command_buffers()
    assert after["replayed"] - before["replayed"] == 2 * 3
    assert (after["plain"], after["recorded"]) == (before["plain"], before["recorded"])
    for each, result in zip(inputs, results, strict=True):
        for name, expected in reference(network(), each).items():
            assert relative_error(result[name].numpy(), expected) < 1e-5
    names = [kernel.name for kernel in model.report.kernels]
    assert [row.name for row in model.profile().kernels] == names


def test_the_profile_has_every_kernel(compiled: tvm_edge.CompiledModel) -> None:
    compiled.warmup()
    names = [kernel.name for kernel in compiled.report.kernels]
    assert [row.name for row in compiled.profile(repeat=2).kernels] == names
    opencl.profile_start()
    compiled.run({"data": random_input(SHAPE)})
    timed = [each for each in opencl.profile_stop() if each["kind"] == "kernel"]
    assert len(timed) >= len(names)  # some have several launches


def test_two_models_in_four_threads(compiled: tvm_edge.CompiledModel) -> None:
    other = tvm_edge.compile(network(1), "opencl", fallback="none")
    x = random_input(SHAPE, 7)
    expected = {id(model): model.run({"data": x}) for model in (compiled, other)}

    def check(model: tvm_edge.CompiledModel) -> bool:
        runs = [model.run({"data": x}) for _ in range(10)]
        kept = expected[id(model)]
        return all(np.array_equal(run[name], kept[name]) for run in runs for name in kept)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, [compiled, other] * 2))


RUNS = """
import json, sys, warnings
import numpy as np
import tvm_edge
from tvm_edge import opencl

results, told = [], []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        model = tvm_edge.load(sys.argv[1])
        for seed in range(2):
            x = np.random.default_rng(seed).standard_normal((1, 8, 12, 12)).astype("float32")
            results.append(model.run({"data": x})["flat"].tobytes().hex())
    told = [str(each.message) for each in caught if each.category is tvm_edge.TvmEdgeWarning]
print(json.dumps({"results": results, "told": told, "counts": opencl.command_buffers()}))
"""


@pytest.fixture(scope="module")
def in_child(exported: Path) -> Callable[..., dict]:
    """Runs the exported model in a process with an environment of its own."""
    return lambda environment: json.loads(
        run_python(RUNS, exported, environment=environment).splitlines()[-1]
    )


@pytest.fixture(scope="module")
def recorded(in_child: Callable[..., dict]) -> dict:
    return in_child({})


def test_an_artifact_that_may_not_record(recorded: dict, in_child: Callable[..., dict]) -> None:
    """Bit by bit the same, by the code without regions."""
    plain = in_child({"TVM_EDGE_OPENCL_COMMAND_BUFFER": "0"})
    assert plain["results"] == recorded["results"]
    assert plain["counts"]["missing"] and plain["told"] == []
    assert (plain["counts"]["recorded"], plain["counts"]["plain"]) == (0, 0)


def test_a_driver_that_fails_to_record_is_named_once(
    recorded: dict, in_child: Callable[..., dict], records: None, tmp_path: Path
) -> None:
    if not (shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("the stand-in for libOpenCL.so needs a C compiler")
    assert recorded["told"] == []
    environment = {
        "TVM_EDGE_OPENCL_LIBRARY": str(build_shim(tmp_path, masked=False)),
        "SHIM_REAL": opencl.status()["library"],
        "SHIM_FAULTS": "clFinalizeCommandBufferKHR:1:-1:-5",
    }
    failing = in_child(environment)
    assert failing["results"] == recorded["results"]
    (told,) = failing["told"]
    assert "finalizing a command buffer failed with CL_OUT_OF_RESOURCES" in told
    assert "TVM_EDGE_OPENCL_COMMAND_BUFFER=0" in told
    counts = failing["counts"]
    assert counts["failed"] >= 2 and counts["recorded"] == counts["replayed"] == 0


@pytest.mark.parametrize("kind", ["opencl", "cuda"])
def test_a_region_without_results(kind: str, request: pytest.FixtureRequest) -> None:
    """A recorded region without results still writes its tensors in each run."""
    if not tvm.runtime.enabled(kind) or not tvm.device(kind).exist:
        pytest.skip(f"no {kind} device on this machine")
    if kind == "opencl":
        request.getfixturevalue("records")
        request.getfixturevalue("small_gpu")
    model = joined()
    before = opencl.command_buffers()["recorded"]
    built = tvm_edge.compile(model, kind, fallback="none", parallel_fusion=True, tuning_logs=False)
    assert any(group["taken"] for group in built.report.fusion_groups)
    for seed in range(3):
        inputs = {"data": random_input((1, 32, 16, 16), seed)}
        for name, value in reference(model, inputs).items():
            assert relative_error(built.run(inputs)[name], value) < 1e-5
    assert kind == "cuda" or opencl.command_buffers()["recorded"] > before


# ------------------------------------------------------------------------------- without a device


def lowered(target: str, fallback: str | list[str] = "none") -> tvm.IRModule:
    return lowered_model(network(), target, fallback, host="llvm").module


def functions(target: str) -> dict[str, relax.Function]:
    found = lowered(target).functions_items()
    return {g.name_hint: f for g, f in found if isinstance(f, relax.Function)}


def test_main_records_and_its_twin_does_not() -> None:
    named = functions("mali-g76")
    assert str(named["main"]).count(OURS) == 2
    assert "vm.builtin.cuda_graph" not in "".join(map(str, named.values()))
    assert OURS not in str(named[KERNEL_BY_KERNEL])


def test_a_region_takes_its_own_weights_alone() -> None:
    """Not the tuple of all, whose types would be checked whenever the region is called."""
    regions = [func for name, func in functions("mali-g76").items() if "capture" in name]
    assert regions
    taken = [param.ty for func in regions for param in func.params]
    assert not any(isinstance(each, relax.TupleType) for each in taken)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("fallback", ["Relu", "Add", "Conv"])
@pytest.mark.parametrize(
    ("target", "run"),
    [("mali-g76", OURS), ("jetson-orin-nano", "vm.builtin.cuda_graph.run_or_capture")],
)
def test_regions_of_a_model_on_two_devices_are_the_gpus(
    target: str, run: str, fallback: str
) -> None:
    """Neither kernels of the CPU nor copies are recorded; each has storage of its device."""
    mod = lowered(target, [fallback])
    gpu = {"mali-g76": "opencl", "jetson-orin-nano": "cuda"}[target]
    called: dict[str, list[str]] = {}
    storages: dict[str, set[int]] = {}
    for gvar, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        called[gvar.name_hint] = names = []
        storages[gvar.name_hint] = devices = set()

        def visit(expr: relax.Expr, names: list = names, devices: set = devices) -> None:
            if is_call(expr, "relax.vm.alloc_storage"):
                devices.add(int(expr.args[1].value))
            elif isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
                kernel = mod[expr.op]
                assert isinstance(kernel, tvm.tirx.PrimFunc)
                where = kernel.attrs.get("target")
                names.append(gpu if where is None else str(where.kind.name))
            elif isinstance(expr, relax.Call) and isinstance(expr.op, relax.ExternFunc):
                names.append(str(expr.op.global_symbol))

        relax.analysis.post_order_visit(func, visit)
    regions = [kinds for name, kinds in called.items() if "capture" in name]
    # Those that differ in nothing but their arguments are one function.
    assert 1 <= len(regions) <= str(mod["main"]).count(run)
    for kinds in regions:
        assert kinds.count(gpu) >= 1
        assert {kind for kind in kinds if not kind.startswith("vm.builtin.")} == {gpu}
        assert not {READ, WRITE, HAND_OVER} & set(kinds)
    for name in ("main", KERNEL_BY_KERNEL):
        assert {"llvm", COPY if gpu == "cuda" else READ} <= set(called[name])
    assert run not in called[KERNEL_BY_KERNEL]
    # On OpenCL the CPU's tensors may all lie in the GPU's memory.
    assert storages["cuda_graph_alloc"] == {0} and (gpu == "opencl" or storages["main"] >= {1})


def test_the_report_does_not_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = tvm_edge.analyze(network(), "mali-g76")
    monkeypatch.setattr(pipeline, "RECORDINGS", {})
    plain = tvm_edge.analyze(network(), "mali-g76")
    assert recorded.memory == plain.memory
    assert recorded.kernels == plain.kernels
