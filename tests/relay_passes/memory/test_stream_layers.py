"""Convolutions whose weights are streamed compute what they compute with weights in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper
from tvm import relax

import tvm_edge
from tests.global_functions import overridden, without_shared_memory
from tests.marks import in_full, needs_opencl
from tests.memory.models import PICTURE, conv_heavy
from tests.onnx_models import make_model, reference, relative_error
from tvm_edge import CompileReport, InputError, opencl
from tvm_edge.compiler.driver import compile_with
from tvm_edge.hardware import resolve_target
from tvm_edge.memory.footprint import rounding
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.relay_passes.lower.number_kernels import number_kernels
from tvm_edge.relay_passes.memory.split_conv import (
    least_conv_window,
    plan_filters,
    split_convolutions,
)
from tvm_edge.relay_passes.memory.stream_layers import LEAST_STREAMED, stream_layers
from tvm_edge.runtime.entry import UPLOAD_PART

MIB = 1 << 20
SIZES, ODD = (3, 65, 528, 128), (3, 65, 521, 130)
WHOLE, CUT = 6 * MIB, MIB


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return conv_heavy(SIZES)


def image(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    picture = random.standard_normal(PICTURE).astype("float32")
    return {"data": picture, "rows": random.integers(0, 5000, 3)}


def check(model: onnx.ModelProto, compiled: Any) -> None:
    """Compare with ONNX Runtime, on another image in each run."""
    for seed in range(2):
        found = compiled.run(image(seed))
        for name, expected in reference(model, image(seed)).items():
            assert relative_error(np.asarray(found[name]), expected) < 1e-4, name


# ------------------------------------------------------------------------------------------ cutting


@given(
    filters=st.integers(1, 3000),
    filter_bytes=st.integers(4, 200_000),
    window=st.integers(64 << 10, 64 << 20),
)
def test_two_parts_fit_the_window(filters: int, filter_bytes: int, window: int) -> None:
    step = plan_filters(filters, filter_bytes, window)
    assert (step is None) == (window < least_conv_window(filters, filter_bytes))
    if step is not None:
        assert 1 <= step <= filters and 2 * step * filter_bytes <= window
        assume(step < filters)
        assert step % 16 == 0 and 2 * filters * filter_bytes > window
        # No more parts than there have to be, but for whole blocks.
        most = window // 2 // filter_bytes // 16 * 16
        assert ceil(filters / step) == ceil(filters / most)


SHIFT = relax.const(np.random.default_rng(1).standard_normal((64, 1, 1)).astype("float32"))
TAILS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "bias": lambda value: relax.op.add(value, SHIFT),
    "half": lambda value: relax.op.multiply(relax.const(np.float32(0.5)), value),
    "relu": relax.op.nn.relu,
    "clip": lambda value: relax.op.clip(value, 0, 6),
    "twice": lambda value: relax.op.add(value, value),
    "pool": lambda value: relax.op.nn.max_pool2d(value, (2, 2), (2, 2)),
}


def module_of(*tail: str, groups: int = 1) -> tvm.IRModule:
    """A convolution of 64 filters of 576 numbers and what is behind it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 64, 8, 8), "float32"))
    filters = np.random.default_rng(0).standard_normal((64, 64 // groups, 3, 3)).astype("float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            call = relax.op.nn.conv2d(x, relax.const(filters), padding=1, groups=groups)
            value = builder.emit(call)
            for step in tail:
                value = builder.emit(TAILS[step](value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def operators(mod: tvm.IRModule) -> list[str]:
    found = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [str(v.op.name).removeprefix("relax.") for v in found if isinstance(v, relax.Call)]


def test_what_is_cut() -> None:
    """A convolution with what is computed of each channel by itself."""
    window = 2 * 2304 * 32
    assert operators(split_convolutions(module_of(), window, {})) == ["nn.conv2d"] * 2 + ["concat"]
    mod = module_of("bias", "clip", "half", "relu", "twice", "pool", "relu")
    made = split_convolutions(mod, window, {})
    part = ["nn.conv2d", "add", "clip", "multiply", "nn.relu", "add"]
    assert operators(made) == [*part, *part, "concat", "nn.max_pool2d", "nn.relu"]
    data = np.random.default_rng(2).standard_normal((1, 64, 8, 8)).astype("float32")
    expected, found = (
        relax.VirtualMachine(tvm.compile(each, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(data))
        for each in (mod, made)
    )
    assert relative_error(found.numpy(), expected.numpy()) < 1e-5


def test_what_stays_whole() -> None:
    for mod, window in (
        (module_of("relu"), 2 * 2304 * 64),  # two of it fit
        (module_of(groups=2), 64 << 10),
        (module_of(), None),
    ):
        assert split_convolutions(mod, window, {}).same_as(mod)


def test_a_window_that_is_too_small() -> None:
    with pytest.raises(InputError, match=r"conv_window=70000 .*'conv1'.*use at least 74880") as err:
        compile_with(conv_heavy(), "llvm", {}, conv_window=70_000)
    assert err.value.name == "conv_window" and err.value.expected == "at least 74880"
    with pytest.raises(InputError, match="conv_window"):
        compile_with(conv_heavy(), "llvm", {}, conv_window=True)


# ---------------------------------------------------------------------------------------- streaming


@pytest.mark.parametrize("target", ["llvm", *in_full("opencl")])
@pytest.mark.parametrize(
    ("sizes", "window"), [(SIZES, CUT), *in_full((SIZES, WHOLE), (ODD, CUT), (ODD, WHOLE))]
)
def test_values(target: str, sizes: tuple[int, ...], window: int) -> None:
    """All but small weights are streamed, as are not the last two filters of an odd ``conv2``."""
    model = conv_heavy(sizes)
    compiled = compile_with(model, target, {}, fallback="none", conv_window=window)
    splits = {split.operator: split for split in compiled.report.splits}
    assert list(splits) == ["conv1", "conv2"]
    for i, split in enumerate(splits.values(), 1):
        assert split.device == target
        assert split.weight_bytes >= 0.98 * 36 * sizes[i] * sizes[i + 1]
    whole = window == WHOLE
    assert {split.along for split in splits.values()} == {"" if whole else "output"}
    assert [split.parts for split in splits.values()] == ([1, 1] if whole else [3, 8])
    memory = compiled.report.memory
    assert memory is not None
    streamed = sum(split.weight_bytes for split in splits.values())
    assert memory.weights_by_device["streamed"] == streamed
    assert sum(kernel.streamed for kernel in compiled.report.kernels) == streamed
    table = 5000 * sizes[-1] * 4
    assert table < memory.weights_by_device[target] < table + MIB // 4, "a table is not streamed"
    check(model, compiled)


def test_report(model: onnx.ModelProto) -> None:
    report = compile_with(model, "llvm", {}, conv_window=WHOLE).report
    (line,) = [split.line() for split in report.splits if split.operator == "conv2"]
    assert line == "conv2 on llvm: 2.3 MiB in one piece, 4.6 MiB at a time"
    assert line in report.summary()
    assert CompileReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_winograd_filters_are_streamed() -> None:
    """As they are multiplied: transformed."""
    random = np.random.default_rng(0)
    filters = random.standard_normal((256, 128, 3, 3), np.float32) / 34
    node = helper.make_node("Conv", ["data", "w"], ["y"], "conv", pads=[1] * 4)
    model = make_model([node], {"data": (1, 128, 16, 16)}, ["y"], {"w": filters})
    compiled = compile_with(model, "llvm", {}, conv_window=4 * MIB, num_threads=1)
    (split,) = compiled.report.splits
    assert "Winograd" in compiled.report.layouts["conv"]
    assert split.parts == 1 and split.weight_bytes > 1.7 * filters.nbytes
    data = {"data": random.standard_normal((1, 128, 16, 16), np.float32)}
    assert relative_error(compiled.run(data)["y"], reference(model, data)["y"]) < 1e-4


@pytest.mark.usefixtures("on_opencl", "own_memory", "small_gpu")
def test_device_memory_falls_by_what_is_predicted(model: onnx.ModelProto, tmp_path: Path) -> None:
    """The device has its own copy of the weights, as a GPU has; with one window and with two."""
    peaks, predicted = [], []
    for run, (window, windows) in enumerate([(None, 2), (None, 2), (CUT, 2), (CUT, 1)]):
        if run in (0, 2):
            compiled = compile_with(model, "opencl", {}, fallback="none", conv_window=window)
            artifact = compiled.export(tmp_path / "model.tvme")
            memory = compiled.report.memory
            del compiled
        assert memory is not None
        before = opencl.memory()["in_use"]
        opencl.reset_peak()
        with without_shared_memory() if run == 3 else nullcontext():
            loaded = tvm_edge.load(artifact)
            check(model, loaded)
        peaks.append(opencl.memory()["peak"] - before)
        del loaded
        kept = memory.weights - memory.weights_by_device.get("streamed", 0)
        predicted.append(kept + memory.window * windows // 2 + memory.rounding)
    # The first fills TVM's pool of the device with what it takes for activations.
    peaks, predicted = peaks[1:], predicted[1:]
    assert predicted[0] - predicted[1] > 2 * MIB > memory.window > MIB // 2
    assert peaks == pytest.approx(predicted, rel=0.08)
    falls = [peaks[0] - peak for peak in peaks[1:]]
    assert falls == pytest.approx([predicted[0] - each for each in predicted[1:]], rel=0.08)


@pytest.mark.usefixtures("on_opencl", "own_memory", "small_gpu")
def test_windows_are_as_large_as_the_largest_layer_from_the_first_on(tmp_path: Path) -> None:
    """A window that grew would stand beside the smaller one, which the run still reads."""
    made: list[tuple[int, ...]] = []
    loaded: list[tvm_edge.CompiledModel] = []

    def counted(upload_part: Any) -> Any:
        def count(*arguments: Any) -> Any:
            part = upload_part(*arguments)
            made.extend(model._session.window_bytes() for model in loaded)
            return part

        return count

    model = conv_heavy((3, 128, 256, 256, 400))
    compiled = compile_with(model, "opencl", {}, fallback="none", conv_window=9 * MIB)
    first, second, third = (split.part_bytes for split in compiled.report.splits)
    assert first < second < third
    with overridden(UPLOAD_PART, counted):
        loaded.append(tvm_edge.load(compiled.export(tmp_path / "model.tvme")))
        check(model, loaded[0])
    memory = compiled.report.memory
    assert memory is not None
    assert set(made) == {(third,) * len(made[0])} and sum(made[0]) == memory.window


@needs_opencl
def test_blocks_of_the_runtime_are_as_large_as_predicted() -> None:
    resolved = resolve_target("mali-g76")
    assert not resolved.spec.on_cpu
    for nbytes in (1, 128, 129, 1024, 1025, 5000, 2560000, 3 * MIB + 1):
        before = opencl.memory()["in_use"]
        tensor = tvm.runtime.empty((nbytes,), "uint8", tvm.opencl(0))
        taken = opencl.memory()["in_use"] - before
        assert nbytes + rounding([nbytes], resolved) == taken
        del tensor
    assert rounding([5000], resolve_target("llvm")) == 0


@needs_opencl
@pytest.mark.parametrize("copies", [True, False])
def test_frames_of_a_stream_and_runs_beside_it(
    model: onnx.ModelProto, tmp_path: Path, copies: bool, request: pytest.FixtureRequest
) -> None:
    """An artifact on two devices: runs and the stages on the GPU use the windows in turns."""
    if copies:
        request.getfixturevalue("own_memory")
    compiled = compile_with(
        model, "opencl", {}, fallback=["conv1", "leaky1"], conv_window=CUT, num_threads=1
    )
    assert {split.operator for split in compiled.report.splits} == {"conv2"}, "the CPU maps its own"
    loaded = tvm_edge.load(compiled.export(tmp_path / "both.tvme"))
    images = [image(seed) for seed in range(5)]
    with loaded.stream(images, depth=3) as stream:
        assert stream.stages == ("opencl", "llvm", "opencl")
        for given_image, found in zip(images, stream, strict=True):
            for outputs in (found, loaded.run(given_image)):
                for name, expected in reference(model, given_image).items():
                    assert relative_error(outputs[name], expected) < 1e-4


def test_least_bytes() -> None:
    builder = relax.BlockBuilder()
    weight = relax.const(np.zeros((600, 600), np.float32))
    x = relax.Var("x", relax.TensorType((1, 600), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.matmul(x, weight)))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps()(builder.get())
    mod = number_kernels(mod, [binding.var for binding in bindings_of(mod["main"])][:1])
    assert stream_layers(mod, LEAST_STREAMED).nbytes == {0: 600 * 600 * 4}
    assert stream_layers(mod, 2 * MIB).nbytes == {}
    assert stream_layers(mod, None).module.same_as(mod)
