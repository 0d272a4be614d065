"""Models on a GPU: where they load, how they are timed, and what they say without a device."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import tvm_edge
from tests.onnx_models import conv_relu, make_model, random_input, reference, relative_error
from tests.runtime.support import rewrite_artifact, run_python

ON_THE_BOARD = """
import json, sys
import numpy as np
import tvm_edge

artifact, inputs, outputs = sys.argv[1:]
model = tvm_edge.load(artifact)
np.savez(outputs, **model.run(dict(np.load(inputs))))
print(json.dumps({
    "kernels": [row.name for row in model.profile(repeat=2).kernels],
    "repeat": model.benchmark(repeat=3).repeat,
    "relax": "tvm.relax" in sys.modules,
}))
"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return conv_relu(3)


@pytest.fixture(scope="module")
def compiled(model: onnx.ModelProto, gpu: str) -> tvm_edge.CompiledModel:
    return tvm_edge.compile(model, gpu, fallback="none")


@pytest.fixture(scope="module")
def exported(compiled: tvm_edge.CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.export(tmp_path_factory.mktemp("gpu") / "small.tvme")


def test_runs_again_and_again(compiled: tvm_edge.CompiledModel, model: onnx.ModelProto) -> None:
    for seed in range(5):
        inputs = {"data": random_input((1, 3, 16, 16), seed)}
        expected = reference(model, inputs)["pooled"]
        assert relative_error(compiled.run(inputs)["pooled"], expected) < 1e-5


def test_device_outputs_stay_there(
    compiled: tvm_edge.CompiledModel, image: np.ndarray, gpu: str
) -> None:
    out = compiled.run({"data": image}, device_outputs=True)["pooled"]
    assert out.device.dlpack_device_type() == tvm.device(gpu, 0).dlpack_device_type()
    np.testing.assert_array_equal(out.numpy(), compiled.run({"data": image})["pooled"])


def test_an_artifact_holds_kernels_and_weights(
    compiled: tvm_edge.CompiledModel, exported: Path, image: np.ndarray, gpu: str
) -> None:
    for device in (None, gpu, f"{gpu}:0"):
        loaded = tvm_edge.load(exported, device=device)
        actual = loaded.run({"data": image})["pooled"]
        np.testing.assert_array_equal(actual, compiled.run({"data": image})["pooled"])


def test_an_artifact_says_its_device(exported: Path, tmp_path: Path, gpu: str) -> None:
    seen = {}
    rewrite_artifact(exported, tmp_path / "copy.tvme", seen.update)
    assert seen["target"]["kind"] == gpu
    assert seen["devices"]["kinds"] == [gpu]
    assert seen["devices"]["weights"] == [0] * len(seen["weights"])


def test_the_runtime_tier_is_enough(
    compiled: tvm_edge.CompiledModel, exported: Path, image: np.ndarray, tmp_path: Path
) -> None:
    np.savez(tmp_path / "inputs.npz", data=image)
    output = run_python(
        ON_THE_BOARD,
        exported,
        tmp_path / "inputs.npz",
        tmp_path / "outputs.npz",
        environment={"TVM_USE_RUNTIME_LIB": "1"},
        blocked=("onnx", "tvm.relax"),
    )
    found = json.loads(output.splitlines()[-1])
    assert found["kernels"] == [kernel.name for kernel in compiled.report.kernels]
    assert (found["repeat"], found["relax"]) == (3, False)
    actual = np.load(tmp_path / "outputs.npz")["pooled"]
    np.testing.assert_array_equal(actual, compiled.run({"data": image})["pooled"])


def test_benchmark_waits_for_the_device(compiled: tvm_edge.CompiledModel) -> None:
    result = compiled.benchmark(repeat=10)
    assert 0 < result.device.median
    # Inputs are in place and results stay: the whole takes longer than the kernels.
    assert result.device.min <= result.end_to_end.median


def test_profile_times_kernels_on_their_device(compiled: tvm_edge.CompiledModel, gpu: str) -> None:
    profile = compiled.profile(repeat=3)
    assert [row.device for row in profile.kernels] == [gpu] * len(compiled.report.kernels)
    assert all(row.time_us > 0 for row in profile.kernels)
    assert sum(row.time_us for row in profile.kernels) <= profile.total_us


def test_the_profile_waits_for_each_kernel(gpu: str) -> None:
    """A launch returns at once: without waiting the time would go to whoever waits at last."""
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)
    weight = np.ones((64, 64, 3, 3), "float32")
    heavy = make_model([node], {"x": (1, 64, 128, 128)}, ["y"], {"w": weight})
    built = tvm_edge.compile(heavy, gpu, fallback="none")
    profile, alone = built.profile(repeat=3), built.benchmark(repeat=3)
    # Launching takes 5 µs; the kernels some 40 on an H100, and hundreds elsewhere.
    assert sum(row.time_us for row in profile.kernels) > 250 * alone.device.min


# ------------------------------------------------------------------------------- without a device


@pytest.fixture(scope="module")
def for_elsewhere(tmp_path_factory: pytest.TempPathFactory, model: onnx.ModelProto) -> Path:
    """An OpenCL model for this machine's CPU beside a GPU that may not be here."""
    compiled = tvm_edge.compile(model, "mali-g76", host="llvm")
    return compiled.export(tmp_path_factory.mktemp("gpu") / "elsewhere.tvme")


def test_a_missing_device_is_named_with_what_to_type(for_elsewhere: Path) -> None:
    for index in (15, 2**31 - 1, 2**31, 10**30):
        with pytest.raises(
            tvm_edge.DeviceUnavailableError, match=rf"opencl:{index}.*tvm-edge doctor"
        ) as error:
            tvm_edge.load(for_elsewhere, device=f"opencl:{index}")
        assert error.value.exit_code == 5


def test_the_first_index_that_is_not_there(exported: Path, gpu: str) -> None:
    count = next(i for i in range(100) if not tvm.device(gpu, i).exist)
    tvm_edge.load(exported, device=f"{gpu}:{count - 1}").warmup()
    with pytest.raises(tvm_edge.DeviceUnavailableError, match=f"{gpu}:{count} "):
        tvm_edge.load(exported, device=f"{gpu}:{count}")


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0", "llvm"])
def test_the_cpu_has_one_name_and_one_device(
    artifact: Path, image: np.ndarray, device: str | None
) -> None:
    assert tvm_edge.load(artifact, device=device).run({"data": image})["pooled"].any()
    with pytest.raises(tvm_edge.DeviceUnavailableError, match="num_threads"):
        tvm_edge.load(artifact, device="cpu:1")
    with pytest.raises(tvm_edge.DeviceUnavailableError, match="target='opencl'"):
        tvm_edge.load(artifact, device="opencl")


def test_an_opencl_model_does_not_run_on_a_cpu(for_elsewhere: Path) -> None:
    with pytest.raises(tvm_edge.DeviceUnavailableError, match="target='llvm'"):
        tvm_edge.load(for_elsewhere, device="cpu")


@pytest.mark.parametrize(
    "device",
    [
        *("gpu", "vulkan", "OpenCL", "", "opencl:", "opencl:x", "opencl:-1", "opencl: 1"),
        *("opencl:²", "opencl:٣", 0, b"opencl", ("opencl", 1)),
    ],
)
def test_what_is_not_a_device(for_elsewhere: Path, device: Any) -> None:
    with pytest.raises(tvm_edge.InputError, match="opencl:1") as error:
        tvm_edge.load(for_elsewhere, device=device)
    assert error.value.name == "device"


def test_without_an_opencl_runtime(for_elsewhere: Path) -> None:
    output = run_python(
        """
import sys, tvm_edge
try:
    tvm_edge.load(sys.argv[1])
except tvm_edge.DeviceUnavailableError as error:
    print(error)
""",
        for_elsewhere,
        environment={"TVM_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert "no device opencl:0" in output and "tvm-edge doctor" in output


PROGRAMS = """
import json, sys
import numpy as np
import tvm_edge
from tvm_edge import opencl

model = tvm_edge.load(sys.argv[1])
loaded = opencl.program_stats()
model.run({"data": np.zeros((1, 3, 16, 16), "float32")})
assert opencl.program_stats() == loaded, "a kernel was built while the first frame waited"
print(json.dumps(loaded))
"""


def test_programs_travel_with_the_artifact(
    compiled: tvm_edge.CompiledModel, tmp_path: Path, gpu: str
) -> None:
    if gpu != "opencl":
        pytest.skip("CUDA kernels are machine code in the library already")
    plain = compiled.export(tmp_path / "plain.tvme")
    with_programs = compiled.export(tmp_path / "programs.tvme", embed_programs=True)
    off = {"TVM_EDGE_OPENCL_CACHE": "0"}
    built = json.loads(run_python(PROGRAMS, str(plain), environment=off))
    assert (built["built"], built["from_artifact"]) == (1, 0)
    found = json.loads(run_python(PROGRAMS, str(with_programs), environment=off))
    assert (found["built"], found["from_artifact"]) == (0, 1)
    assert found["waiting"] == 0, "a copy of what the driver has stays in memory"


LOADED_AGAIN = """
import gc, json, sys
import tvm_edge
from tvm_edge import opencl

model = tvm_edge.load(sys.argv[1])
del model
gc.collect()
second = tvm_edge.load(sys.argv[1])
third = tvm_edge.load(sys.argv[1])
print(json.dumps(opencl.program_stats()))
"""


def test_an_artifact_that_is_loaded_again_brings_its_programs_again(
    compiled: tvm_edge.CompiledModel, tmp_path: Path, gpu: str
) -> None:
    if gpu != "opencl":
        pytest.skip("CUDA kernels are machine code in the library already")
    path = compiled.export(tmp_path / "programs.tvme", embed_programs=True)
    off = {"TVM_EDGE_OPENCL_CACHE": "0"}
    stats = json.loads(run_python(LOADED_AGAIN, str(path), environment=off))
    # The third shares the second's.
    assert (stats["built"], stats["from_artifact"]) == (0, 2)


def test_damaged_programs_are_an_artifact_error(
    compiled: tvm_edge.CompiledModel, tmp_path: Path, gpu: str
) -> None:
    if gpu != "opencl":
        pytest.skip("CUDA artifacts have no programs")
    path = compiled.export(tmp_path / "programs.tvme", embed_programs=True)
    content = bytearray(path.read_bytes())
    content[content.index(b"TEOCL001") + 40] ^= 1
    path.write_bytes(content)
    with pytest.raises(tvm_edge.ArtifactError, match=r"programs\.bin"):
        tvm_edge.load(path)


def test_loading_again_and_again_keeps_nothing(exported: Path, gpu: str) -> None:
    """Models that were dropped leave no device memory behind beyond the allocator's own."""
    device = tvm.device(gpu, 0)
    free = []
    for _ in range(10):
        model = tvm_edge.load(exported)
        model.warmup()
        del model
        gc.collect()
        free.append(device.available_global_memory)
    assert len(set(free[5:])) == 1, free
