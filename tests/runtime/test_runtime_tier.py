"""Artifacts run where there is no compiler, no ONNX and only TVM's runtime library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.runtime.support import run_python

ON_THE_BOARD = """
import json, sys
import numpy as np
import tvm_edge

artifact, inputs, outputs, exported = sys.argv[1:]
model = tvm_edge.load(artifact)
np.savez(outputs, **model.run(dict(np.load(inputs))))
profile = model.profile(repeat=2)
model.export(exported)
model.report.to_html(exported + ".html", profile)
absent = ("networkx", "onnx", "onnx_ir", "onnxscript", "tvm.relax")
loaded = [name for name in absent if name in sys.modules]
print(json.dumps({
    "report": model.report.to_dict(),
    "repeat": model.benchmark(repeat=3).repeat,
    "kernels": [row.name for row in profile.kernels],
    "loaded": loaded,
    "compiler": any(name.startswith("tvm_edge.compiler") for name in sys.modules),
}))
"""


@pytest.mark.parametrize(
    ("variable", "blocked"),
    [
        ("1", ("networkx", "onnx", "onnx_ir", "onnxscript", "tvm.relax")),
        # `import tvm` imports tvm.relax itself where the whole library is loaded.
        (None, ("networkx", "onnx", "onnx_ir", "onnxscript")),
    ],
    ids=["runtime library", "whole TVM"],
)
def test_an_artifact_needs_the_runtime_only(
    compiled_small: tvm_edge.CompiledModel,
    artifact: Path,
    image: np.ndarray,
    tmp_path: Path,
    variable: str | None,
    blocked: tuple[str, ...],
) -> None:
    np.savez(tmp_path / "inputs.npz", data=image)
    output = run_python(
        ON_THE_BOARD,
        artifact,
        tmp_path / "inputs.npz",
        tmp_path / "outputs.npz",
        tmp_path / "again.tvme",
        environment={"TVM_USE_RUNTIME_LIB": variable},
        blocked=blocked,
    )
    found = json.loads(output)
    expected = compiled_small.run({"data": image})["pooled"]
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npz")["pooled"], expected)
    report = replace(compiled_small.report, seconds={})
    assert found["report"] == json.loads(json.dumps(report.to_dict()))
    assert found["repeat"] == 3
    assert found["kernels"] == [kernel.name for kernel in compiled_small.report.kernels]
    assert not set(found["loaded"]) & set(blocked)
    assert not found["compiler"]
    assert (tmp_path / "again.tvme").read_bytes() == artifact.read_bytes()


ASKED_OF_TVM = """
from tvm_ffi import core

find, found = core._object_type_key_to_index, []
core._object_type_key_to_index = noted = lambda key: found.append(find(key)) or found[-1]

import tvm_edge

tvm_edge.load
assert core._object_type_key_to_index is noted
print(len(found), found.count(None))
"""


def test_no_error_is_made_for_types_of_the_compiler() -> None:
    output = run_python(ASKED_OF_TVM, environment={"TVM_USE_RUNTIME_LIB": "1"})
    asked, unknown = map(int, output.split())
    assert asked > 0
    assert unknown == 0
