"""``run``: what it takes, what it refuses, what it gives back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import conv_relu, make_model, random_input, reference, relative_error
from tests.runtime.support import in_forked_child, wide_conv
from tvm_edge import DeviceUnavailableError, InputError


@pytest.fixture(scope="module")
def two_outputs() -> tvm_edge.CompiledModel:
    """``total = left + right`` and ``scaled = 2 * left``, 4×6 each."""
    model = make_model(
        [
            helper.make_node("Add", ["left", "right"], ["total"], name="add"),
            helper.make_node("Mul", ["left", "two"], ["scaled"], name="mul"),
        ],
        {"left": (4, 6), "right": (4, 6)},
        ["total", "scaled"],
        {"two": np.full(1, 2, "float32")},
    )
    return tvm_edge.compile(model, "llvm")


@pytest.fixture(scope="module")
def copies() -> tvm_edge.CompiledModel:
    """Outputs that are an input, the same input again, and a weight."""
    model = make_model(
        [
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Identity", ["x"], ["again"]),
            helper.make_node("Identity", ["weight"], ["constant"]),
        ],
        {"x": (4, 16)},
        ["same", "again", "constant"],
        {"weight": np.arange(64, dtype="float32")},
    )
    return tvm_edge.compile(model, "llvm")


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """A float32 array on 64 bytes, which TVM takes without a copy."""
    size = int(np.prod(shape))
    room = np.zeros(size + 16, "float32")
    skip = (-room.ctypes.data % 64) // 4
    return room[skip : skip + size].reshape(shape)


BAD_INPUTS: dict[str, tuple[Callable[[np.ndarray], Any], str, str, str]] = {
    # name → (inputs made of a good array, .name, .expected, .got)
    "missing": (lambda x: {}, "data", "data: float32[1, 3, 16, 16]", "nothing"),
    "unknown": (lambda x: {"data": x, "other": x}, "other", "data", "other"),
    "misspelt": (lambda x: {"dta": x}, "dta", "data", "dta"),
    "not a name": (lambda x: {3: x}, "3", "data", "3"),
    "shape": (lambda x: {"data": x[0]}, "data", "(1, 3, 16, 16)", "(3, 16, 16)"),
    "batch": (lambda x: {"data": x[:0]}, "data", "(1, 3, 16, 16)", "(0, 3, 16, 16)"),
    "layout": (
        lambda x: {"data": x.transpose(0, 2, 3, 1)},
        "data",
        "(1, 3, 16, 16)",
        "(1, 16, 16, 3)",
    ),
    "float64": (lambda x: {"data": x.astype("float64")}, "data", "float32", "float64"),
    "uint8": (lambda x: {"data": x.astype("uint8")}, "data", "float32", "uint8"),
    "object": (lambda x: {"data": x.astype(object)}, "data", "float32", "object"),
    "list": (lambda x: {"data": x.tolist()}, "data", "an array", "list"),
    "none": (lambda x: {"data": None}, "data", "an array", "NoneType"),
    "number": (lambda x: {"data": 1.0}, "data", "an array", "float"),
    "array for dict": (lambda x: x, "inputs", "dict", "ndarray"),
    "list for dict": (lambda x: [x], "inputs", "dict", "list"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs(compiled_small: tvm_edge.CompiledModel, image: np.ndarray, case: str) -> None:
    make, name, expected, got = BAD_INPUTS[case]
    with pytest.raises(InputError) as caught:
        compiled_small.run(make(image))
    assert (caught.value.name, caught.value.expected, caught.value.got) == (name, expected, got)
    assert caught.value.exit_code == 4
    assert "data" in str(caught.value)


def test_a_misspelt_name_is_answered_with_the_right_one(
    two_outputs: tvm_edge.CompiledModel,
) -> None:
    array = np.zeros((4, 6), "float32")
    with pytest.raises(InputError, match="did you mean 'right'"):
        two_outputs.run({"left": array, "rihgt": array})
    with pytest.raises(InputError, match="did you mean 'scaled'") as caught:
        two_outputs.run({"left": array, "right": array}, outputs=["total", "scaeld"])
    assert caught.value.name == "scaeld"
    assert "total" in caught.value.expected


def test_a_dlpack_object_that_cannot_be_read(compiled_small: tvm_edge.CompiledModel) -> None:
    class OnAnotherDevice:
        def __dlpack__(self, **_options: Any) -> Any:
            raise BufferError("the data is on a GPU")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(InputError, match=r"on a GPU.*host memory") as caught:
        compiled_small.run({"data": OnAnotherDevice()})
    assert caught.value.name == "data"


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_memory_layout_gives_the_same_result(
    data: st.DataObject, two_outputs: tvm_edge.CompiledModel
) -> None:
    """Strided, reversed, transposed, read-only and big-endian arrays hold the same numbers."""
    values = data.draw(
        hnp.arrays(
            "float32", (4, 6), elements=st.floats(-100, 100, width=32, allow_subnormal=False)
        ),
        label="values",
    )
    # On 64 bytes, where TVM might be tempted to take the memory as it is.
    layouts = {
        "C": aligned((4, 6)),
        "Fortran": aligned((6, 4)).T,
        "strided": aligned((8, 18))[::2, ::3],
        "reversed": aligned((4, 6))[::-1, ::-1],
        "shifted": aligned((5, 6)).ravel()[1:25].reshape(4, 6),
    }
    array = layouts[data.draw(st.sampled_from(sorted(layouts)))]
    array[...] = values
    if data.draw(st.booleans(), label="big-endian"):
        array = array.astype(">f4")
    array.flags.writeable = data.draw(st.booleans(), label="writeable")
    outputs = two_outputs.run({"left": array, "right": array})
    np.testing.assert_array_equal(outputs["total"], values + values)
    np.testing.assert_array_equal(outputs["scaled"], 2 * values)
    np.testing.assert_array_equal(array, values)


def test_tvm_tensors_are_taken(compiled_small: tvm_edge.CompiledModel, image: np.ndarray) -> None:
    expected = compiled_small.run({"data": image})["pooled"]
    actual = compiled_small.run({"data": tvm.runtime.tensor(image)})["pooled"]
    np.testing.assert_array_equal(actual, expected)


def test_a_subset_of_the_outputs(two_outputs: tvm_edge.CompiledModel) -> None:
    inputs = {"left": random_input((4, 6)), "right": random_input((4, 6), seed=1)}
    assert list(two_outputs.run(inputs)) == ["total", "scaled"]
    only = two_outputs.run(inputs, outputs=["scaled"])
    assert list(only) == ["scaled"]
    np.testing.assert_array_equal(only["scaled"], 2 * inputs["left"])
    assert two_outputs.run(inputs, outputs=[]) == {}


def test_device_outputs(compiled_small: tvm_edge.CompiledModel, image: np.ndarray) -> None:
    tensor = compiled_small.run({"data": image}, device_outputs=True)["pooled"]
    assert isinstance(tensor, tvm.runtime.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), compiled_small.run({"data": image})["pooled"])


@pytest.mark.parametrize("device_outputs", [False, True])
def test_a_later_run_leaves_earlier_results_alone(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray, device_outputs: bool
) -> None:
    first = compiled_small.run({"data": image}, device_outputs=device_outputs)["pooled"]
    seen = np.array(first if isinstance(first, np.ndarray) else first.numpy())
    for factor in (2, 3, 4):
        compiled_small.run({"data": factor * image}, device_outputs=device_outputs)
    now = first if isinstance(first, np.ndarray) else first.numpy()
    np.testing.assert_array_equal(now, seen)
    assert seen.any()


def test_results_belong_to_the_caller(copies: tvm_edge.CompiledModel) -> None:
    """Writing to a result changes no input, no other result and no weight."""
    x = aligned((4, 16))
    x[:] = 1
    outputs = copies.run({"x": x})
    for name in ("same", "constant"):
        outputs[name][:] = -5
    np.testing.assert_array_equal(x, 1)
    np.testing.assert_array_equal(outputs["again"], 1)
    np.testing.assert_array_equal(copies.run({"x": x})["constant"], np.arange(64))


def test_warmup_changes_no_result(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray
) -> None:
    before = compiled_small.run({"data": image})["pooled"]
    compiled_small.warmup()
    np.testing.assert_array_equal(compiled_small.run({"data": image})["pooled"], before)


def test_models_take_turns(image: np.ndarray) -> None:
    protos = [conv_relu(seed) for seed in range(3)]
    models = [tvm_edge.compile(p, "llvm", num_threads=i % 2 + 1) for i, p in enumerate(protos)]
    expected = [reference(p, {"data": image})["pooled"] for p in protos]
    for _ in range(3):
        for model, outputs in zip(models, expected, strict=True):
            assert relative_error(model.run({"data": image})["pooled"], outputs) < 1e-4


@pytest.mark.parametrize(
    ("operator", "limits"), [("Relu", ()), ("Clip", (0, 6)), ("Sigmoid", ()), ("LeakyRelu", ())]
)
def test_nan_propagates(operator: str, limits: tuple[float, ...]) -> None:
    """A broken input must not come out as a plausible number; ONNX and its runtime agree."""
    names = [f"limit{i}" for i in range(len(limits))]
    model = make_model(
        [helper.make_node(operator, ["x", *names], ["y"])],
        {"x": (2, 8)},
        ["y"],
        {name: np.array(v, "float32") for name, v in zip(names, limits, strict=True)},
    )
    x = random_input((2, 8))
    x[0, 3] = np.nan
    expected = reference(model, {"x": x})["y"]
    actual = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    assert np.isnan(actual[0, 3])
    assert relative_error(np.nan_to_num(actual), np.nan_to_num(expected)) < 1e-4


def test_nan_propagates_through_a_network(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray
) -> None:
    broken = image.copy()
    broken[0, 1, 5, 5] = np.nan
    assert np.isnan(compiled_small.run({"data": broken})["pooled"]).all()


def test_integers_pass_through_exactly() -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        {"x": (5,)},
        ["y"],
        dtypes={"x": TensorProto.INT64, "y": TensorProto.INT64},
    )
    x = np.array([0, 1, -1, 2**40 + 1, -(2**52)])
    result = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result, 2 * x)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_runs_the_model(compiled_wide: tvm_edge.CompiledModel) -> None:
    """Servers load a model and fork their workers."""
    inputs = {"data": random_input((1, 32, 56, 56))}
    expected = compiled_wide.run(inputs)["result"]

    def run() -> None:
        for _ in range(20):
            np.testing.assert_array_equal(compiled_wide.run(inputs)["result"], expected)

    def grandchild() -> None:
        assert in_forked_child(run) == "done"

    assert in_forked_child(run) == "done"
    assert in_forked_child(compiled_wide.profile) == "done"
    assert in_forked_child(grandchild) == "done"
    run()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_of_a_gpus_model_is_refused(
    on_opencl: None,
) -> None:
    model = tvm_edge.compile(wide_conv(), "opencl", fallback="none")
    model.warmup()
    assert in_forked_child(model.warmup) == DeviceUnavailableError.__name__


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_model_first_used_in_a_forked_child_does_not_hang(
    compiled_wide: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    """The parent's pool of this thread stayed behind, also for models that come later."""
    inputs = {"data": random_input((1, 32, 56, 56))}
    compiled_wide.run(inputs)
    path = compiled_wide.export(tmp_path / "wide.tvme")
    unused = tvm_edge.compile(wide_conv(), "llvm", num_threads=2)
    assert in_forked_child(lambda: tvm_edge.load(path, num_threads=2).run(inputs)) == "done"
    assert in_forked_child(lambda: unused.run(inputs)) == "done"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_another_thread_runs_the_model_does_not_hang(
    compiled_wide: tvm_edge.CompiledModel,
) -> None:
    """The child lacks that thread, so nobody there releases the locks that it holds."""
    inputs = {"data": random_input((1, 32, 56, 56))}
    ran, stop = threading.Event(), threading.Event()

    def keep_running() -> None:
        while not stop.is_set():
            compiled_wide.run(inputs)
            ran.set()

    def run_in_new_thread() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(compiled_wide.run, inputs).result()

    thread = threading.Thread(target=keep_running)
    thread.start()
    ran.wait()
    try:
        outcomes = {in_forked_child(run_in_new_thread) for _ in range(2)}
    finally:
        stop.set()
        thread.join()
    assert outcomes == {"done"}


@pytest.mark.parametrize("outputs", ["pooled", [3], ["poled"]])
def test_outputs_that_are_not_names(
    compiled_small: tvm_edge.CompiledModel, outputs: object
) -> None:
    """A string would be read letter by letter."""
    inputs = {"data": np.zeros((1, 3, 16, 16), "float32")}
    with pytest.raises(InputError, match="pooled"):
        compiled_small.run(inputs, outputs=outputs)  # type: ignore[arg-type]
