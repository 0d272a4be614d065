"""Weights lie in memory once: mapped from the artifact, or where a GPU keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.marks import needs_opencl
from tests.onnx_models import make_model
from tests.runtime.support import rewrite_artifact, run_python
from tvm_edge import zoo

LAYERS, WIDTH = 4, 2048
WEIGHTS_MIB = LAYERS * WIDTH * WIDTH * 4 / 2**20  # 64
REST_MIB = 20  # virtual machine, threads, library, activations; measured: 3

# VmHWM and not getrusage: a child that subprocess forks begins with its parent's ru_maxrss.
STATUS = """
def mib(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024
"""

LOAD_AND_RUN = f"""
import json, sys
import tvm
import tvm_edge
{STATUS}
def of_file(field, path):
    lines = open("/proc/self/smaps").read().splitlines()
    found = [lines[i + 1 : i + 20] for i, line in enumerate(lines) if line.endswith(path)]
    return sum(int(l.split()[1]) for each in found for l in each if l.startswith(field)) / 1024

def anonymous_mib():
    return mib("RssAnon") + mib("RssShmem")

if "copies" in sys.argv:
    import tvm_ffi
    tvm_ffi.register_global_func("tvm_edge.opencl.borrow", lambda *_: None, override=True)
before, anonymous = mib("VmRSS"), anonymous_mib()
model = tvm_edge.load(sys.argv[1])
model.warmup()
found = dict(resident=mib("VmRSS") - before, peak=mib("VmHWM") - before)
found["anonymous"] = anonymous_mib() - anonymous
found["mapped"] = of_file("Rss:", sys.argv[1])
found["private"] = of_file("Anonymous:", sys.argv[1]) + of_file("Private_Dirty:", sys.argv[1])
if len(sys.argv) > 2 and sys.argv[-1].endswith(".tvme"):
    model.export(sys.argv[-1])
print(json.dumps(dict(found, process=mib("VmHWM"))))
"""

ONNX_RUNTIME = f"""
import json, sys
import numpy as np
import onnxruntime
{STATUS}
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, dict(np.load(sys.argv[2])))
print(json.dumps(mib("VmHWM")))
"""


@pytest.fixture(scope="module")
def heavy_model() -> onnx.ModelProto:
    """Four dense layers with 16 MiB of weights each."""
    generator = np.random.default_rng(0)
    names = [f"w{index}" for index in range(LAYERS)]
    tensors = ["x", *(f"t{index}" for index in range(1, LAYERS)), "y"]
    nodes = [
        helper.make_node("Gemm", [tensors[i], name], [tensors[i + 1]], name=f"fc{i}")
        for i, name in enumerate(names)
    ]
    weights = {name: generator.standard_normal((WIDTH, WIDTH), np.float32) for name in names}
    return make_model(nodes, {"x": (1, WIDTH)}, ["y"], weights)


@pytest.fixture(scope="module")
def heavy_artifact(heavy_model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model for this machine's CPU."""
    folder = tmp_path_factory.mktemp("memory")
    return tvm_edge.compile(heavy_model, "llvm").export(folder / "heavy.tvme")


def measured(*arguments: object) -> Any:
    """Growth of a fresh process on the runtime tier that loads an artifact and runs it, in MiB."""
    output = run_python(LOAD_AND_RUN, *arguments, environment={"TVM_USE_RUNTIME_LIB": "1"})
    return json.loads(output.splitlines()[-1])


def test_a_cpu_runs_with_the_weights_where_they_are_mapped(heavy_artifact: Path) -> None:
    found = measured(heavy_artifact)
    assert found["mapped"] == pytest.approx(WEIGHTS_MIB, abs=1)
    assert found["peak"] < WEIGHTS_MIB + REST_MIB
    assert found["private"] == 0


def test_weights_that_have_to_be_copied_do_not_lie_there_twice(
    heavy_artifact: Path, tmp_path: Path
) -> None:
    """An artifact that another tool has packed again has them anywhere."""
    found = measured(rewrite_artifact(heavy_artifact, tmp_path / "packed.tvme"))
    assert found["resident"] < WEIGHTS_MIB + REST_MIB
    assert found["peak"] < (1 + 1 / LAYERS) * WEIGHTS_MIB + REST_MIB


def test_weights_of_a_gpu_leave_host_memory(
    heavy_model: onnx.ModelProto, gpu: str, tmp_path: Path
) -> None:
    """Once they are uploaded. Export still has them."""
    artifact = tvm_edge.compile(heavy_model, gpu, fallback="none").export(tmp_path / "heavy.tvme")
    found = measured(artifact, "copies", tmp_path / "again.tvme")
    assert found["mapped"] < 1
    assert (tmp_path / "again.tvme").read_bytes() == artifact.read_bytes()


@needs_opencl
def test_a_device_that_is_the_cpu_reads_weights_where_they_are_mapped(
    heavy_model: onnx.ModelProto, tmp_path: Path
) -> None:
    """Beside a process that copies them, as it would for a GPU."""
    if tvm_edge.opencl.device_info()["type"] != "cpu":
        pytest.skip("the OpenCL device is not the CPU")
    model = tvm_edge.compile(heavy_model, "opencl", fallback="none")
    artifact = model.export(tmp_path / "heavy.tvme")
    shared, copied = measured(artifact), measured(artifact, "copies")
    assert shared["mapped"] == pytest.approx(WEIGHTS_MIB, abs=1)
    assert copied["anonymous"] - shared["anonymous"] > 0.9 * WEIGHTS_MIB


def test_weights_of_the_cpu_beside_a_gpu_stay_pages_of_the_file(
    heavy_model: onnx.ModelProto, tmp_path: Path
) -> None:
    """Clean ones, which the operating system may drop; and nothing has a copy of them."""
    compiled = tvm_edge.compile(heavy_model, "opencl", fallback=["fc1", "fc2", "fc3"])
    compiled.warmup()  # pocl keeps what it builds; building takes more memory than weights
    found = measured(compiled.export(tmp_path / "both.tvme"))
    on_cpu = 3 / 4 * WEIGHTS_MIB
    assert found["mapped"] > on_cpu - 1  # all, where the OpenCL device is the CPU
    assert found["private"] == 0
    assert found["anonymous"] < on_cpu  # the GPU's weights, and pocl; measured: 32


@pytest.mark.full
@pytest.mark.parametrize(
    ("network", "factor", "more_mib"), [("resnet50_v1", 1.3, 0), ("mobilenet_v2", 1, 64)]
)
def test_a_process_is_not_much_larger_than_one_with_onnx_runtime(
    tmp_path: Path, network: str, factor: float, more_mib: float
) -> None:
    path = zoo.save(network, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", **zoo.sample_input(network))
    artifact = tvm_edge.compile(path, "llvm").export(tmp_path / "model.tvme")
    peer = json.loads(run_python(ONNX_RUNTIME, path, tmp_path / "inputs.npz"))
    assert measured(artifact)["process"] <= factor * peer + more_mib
