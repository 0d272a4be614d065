"""The public surface: names, signatures, errors, and what importing it costs."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import tvm_edge
from tests.onnx_models import conv_relu
from tests.runtime.support import run_python
from tvm_edge import InputError, TvmEdgeError

FUNCTIONS = ("analyze", "compile", "connect", "devices", "doctor", "load", "tune")
CLASSES = (
    "BenchmarkResult",
    "CompileReport",
    "CompiledModel",
    "Device",
    "DeviceSpec",
    "Diagnosis",
    "Dim",
    "Picture",
    "Profile",
    "Remote",
    "TensorSpec",
    "TuneResult",
)
ERRORS = {
    # name → exit code
    "TvmEdgeError": 4,
    "InvalidModelError": 4,
    "UnsupportedOperatorError": 4,
    "CompilationError": 1,
    "InputError": 4,
    "DeviceUnavailableError": 5,
    "PlacementError": 4,
    "MemoryBudgetError": 4,
    "ArtifactError": 4,
    "RecordError": 4,
    "MissingDependencyError": 5,
    "TuningError": 4,
    "MeasureTimeout": 4,
    "DeviceLost": 4,
    "WrongResult": 4,
    "InvalidLaunch": 4,
}
SIGNATURES = {
    "compile": "(model, target, *, host=None, input_shapes=None, input_values=None, "
    "preprocess=None, example_inputs=None, precision='float32', precision_exceptions=(), "
    "fallback='auto', parallel_fusion='auto', memory_budget=None, tuning_logs=None, "
    "num_threads=None, cpus=None, progress=None)",
    "load": "(path, *, device=None, num_threads=None, cpus=None, copy=False, remote=None)",
    "connect": "(address, key=None, *, timeout=30.0, request_timeout=300.0, token_file=None)",
    "analyze": "(model, target, *, host=None, input_shapes=None, input_values=None, "
    "preprocess=None, example_inputs=None, fallback='auto', parallel_fusion='auto', "
    "memory_budget=None, tuning_logs=None)",
    "tune": "(model, target='llvm', *, trials=None, time_budget=None, level='normal', host=None, "
    "input_shapes=None, input_values=None, preprocess=None, precision='float32', tracker=None, "
    "key=None, tuning_logs=None, resume=False, seed=0, callbacks=(), graph=False, "
    "parallel_fusion=False)",
    "devices": "()",
    "doctor": "()",
    "CompiledModel.run": "(self, inputs, *, models=None, outputs=None, device_outputs=False)",
    "CompiledModel.export": "(self, path, *, embed_programs=False)",
    "CompiledModel.benchmark": "(self, inputs=None, *, models=None, warmup=3, repeat=20)",
    "CompiledModel.profile": "(self, inputs=None, *, models=None, repeat=10)",
    "CompiledModel.warmup": "(self, *, models=None)",
    "CompileReport.summary": "(self)",
    "CompileReport.to_dict": "(self)",
    "CompileReport.to_html": "(self, path, profile=None)",
    "CompileReport.operator_types": "(self)",
    "TuneResult.summary": "(self)",
    "TuneResult.table": "(self, top=None)",
    "TuneResult.to_dict": "(self)",
    "CompileReport.flops_distribution": "(self, of='operators')",
}


def test_exported_names() -> None:
    expected = {*FUNCTIONS, *CLASSES, *ERRORS, "TvmEdgeWarning", "__version__", "zoo"}
    assert set(tvm_edge.__all__) == expected
    assert len(tvm_edge.__all__) == len(expected)
    assert dir(tvm_edge) == sorted(expected)


def test_every_name_resolves() -> None:
    """Also after a compilation, which imports modules with names like theirs."""
    tvm_edge.compile(conv_relu(), "llvm")
    for name in FUNCTIONS:
        assert inspect.isfunction(getattr(tvm_edge, name)), name
    for name in (*CLASSES, *ERRORS, "TvmEdgeWarning"):
        assert inspect.isclass(getattr(tvm_edge, name)), name
    assert isinstance(tvm_edge.__version__, str)
    assert inspect.ismodule(tvm_edge.zoo)


@pytest.mark.parametrize("name", ["onnx_backend", "opencl", "ops", "zoo"])
def test_a_module_of_the_api_is_there_after_importing_the_package(name: str) -> None:
    """The documentation writes ``tvm_edge.opencl.library_path``."""
    code = f"import inspect, tvm_edge; print(inspect.ismodule(tvm_edge.{name}))"
    assert run_python(code).split()[-1] == "True"


def test_a_module_that_needs_the_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_USE_RUNTIME_LIB", "1")
    code = """
import tvm_edge
for name in ("onnx_backend", "ops"):
    try:
        getattr(tvm_edge, name)
    except tvm_edge.MissingDependencyError as error:
        print(name, "unset TVM_USE_RUNTIME_LIB" in str(error), "apache-tvm==" in str(error))
tvm_edge.opencl.library_path()
"""
    assert run_python(code).split() == ["onnx_backend", "True", "True", "ops", "True", "True"]


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="'tvm_edge' has no attribute 'compiel'"):
        _ = tvm_edge.compiel


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    value: Any = tvm_edge
    for part in name.split("."):
        value = getattr(value, part)
    parameters = inspect.signature(value).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert str(inspect.Signature(bare)) == SIGNATURES[name]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_ours_and_has_an_exit_code(name: str) -> None:
    error = getattr(tvm_edge, name)
    assert issubclass(error, TvmEdgeError)
    assert error.exit_code == ERRORS[name]


def test_measurement_errors_are_tuning_errors() -> None:
    for name in ("MeasureTimeout", "DeviceLost", "WrongResult", "InvalidLaunch"):
        assert issubclass(getattr(tvm_edge, name), tvm_edge.TuningError)


def test_errors_carry_what_a_program_needs() -> None:
    wrong = InputError("message", name="data", expected="float32", got="float64")
    assert (wrong.name, wrong.expected, wrong.got) == ("data", "float32", "float64")
    budget = tvm_edge.MemoryBudgetError("message", budget=10, smallest_feasible=20)
    assert (budget.budget, budget.smallest_feasible) == (10, 20)
    unknown = tvm_edge.UnsupportedOperatorError("message", ["Foo", "Bar"])
    assert unknown.operators == ("Foo", "Bar")
    assert issubclass(tvm_edge.TvmEdgeWarning, UserWarning)


def loaded_modules(statement: str) -> set[str]:
    """Top-level packages, and modules of tvm_edge, that `statement` imports."""
    code = f"""
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    names = json.loads(run_python(code).splitlines()[-1])
    return {name if name.startswith("tvm_edge") else name.split(".")[0] for name in names}


def test_importing_tvm_edge_is_cheap() -> None:
    loaded = loaded_modules("import tvm_edge; tvm_edge.__version__; tvm_edge.InputError")
    assert loaded >= {"tvm_edge", "tvm_edge.errors"}
    assert not loaded & {"tvm", "tvm_ffi", "numpy", "onnx", "onnx_ir", "onnxscript", "rich"}


def test_importing_tvm_loads_the_opencl_runtime_and_nothing_else_of_ours() -> None:
    loaded = loaded_modules("import tvm")
    assert "tvm" in loaded
    ours = {name for name in loaded if name.startswith("tvm_edge")}
    runtime = {"tvm_edge.opencl", "tvm_edge.opencl._autoload"}
    assert ours <= {"tvm_edge", "tvm_edge._version", "tvm_edge.library_path", *runtime}


def test_asking_for_help_imports_no_tvm() -> None:
    loaded = loaded_modules("from tvm_edge.cli import main; main.main(['--help'])")
    assert "tvm_edge.cli.main" in loaded
    assert not loaded & {"tvm", "tvm_ffi", "numpy", "onnx"}


WITHOUT_ONNX = """
import sys
import tvm_edge
for package in ("onnx", "onnx_ir", "onnxscript"):  # as they are imported: none is there already
    assert package not in sys.modules
    BLOCKED = (package,)
    for model in (sys.argv[1], open(sys.argv[1], "rb").read()):
        try:
            tvm_edge.compile(model, "llvm")
        except tvm_edge.MissingDependencyError as err:
            print(package, err)
"""


def test_without_onnx_the_message_names_the_extra(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(conv_relu(), path)
    lines = run_python(WITHOUT_ONNX, path, blocked=("onnx",)).splitlines()
    packages = [line.split()[0] for line in lines]
    assert packages == ["onnx"] * 2 + ["onnx_ir"] * 2 + ["onnxscript"] * 2
    for package, line in zip(packages, lines, strict=True):
        assert f"'{package}'" in line
        assert "pip install 'tvm-edge[onnx]'" in line


WITHOUT_NETWORKX = """
import sys
import tvm_edge
tvm_edge.compile(sys.argv[1], "llvm")
try:
    tvm_edge.compile(sys.argv[1], "mali-t860", tuning_logs=False)
except tvm_edge.MissingDependencyError as err:
    print(err)
"""


def test_without_networkx_the_message_names_the_extra(tmp_path: Path) -> None:
    """Placement on two devices needs it, a CPU does not."""
    path = tmp_path / "model.onnx"
    onnx.save(conv_relu(), path)
    found = run_python(WITHOUT_NETWORKX, path, blocked=("networkx",))
    assert "'networkx' is needed to place operators by cost" in found
    assert "pip install 'tvm-edge[onnx]'" in found


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"precision": "tf32"}, "tensor cores"),
        ({"precision_exceptions": ["Conv"]}, "use precision='mixed', 'float16' or 'bfloat16'"),
        ({"precision_exceptions": "Conv"}, "use a list"),
        ({"precision": "flaot32"}, "did you mean 'float32'"),
        ({"memory_budget": 0}, "is not a size"),
        ({"memory_budget": "lots"}, "is not a size"),
        ({"parallel_fusion": "x"}, "'auto', True or False"),
        ({"parallel_fusion": 1}, "'auto', True or False"),
        ({"fallback": "x"}, "auto, list, none, error"),
        ({"fallback": 3}, "auto, list, none, error"),
        ({"host": "llvm"}, "leave host out"),
        ({"tuning_logs": "/no/such/logs"}, "there are no tuning records"),
        ({"tuning_logs": True}, "a folder or file of records"),
        ({"num_threads": 0}, "positive"),
    ],
    ids=str,
)
def test_options_that_cannot_be_honoured(options: dict[str, Any], fragment: str) -> None:
    """Refused at the door: before the model is read, let alone compiled."""
    with pytest.raises(InputError) as caught:
        tvm_edge.compile("/no/such/model.onnx", "llvm", **options)
    ((name, value),) = options.items()
    assert caught.value.name == name
    assert caught.value.got in (repr(value), str(value))
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "float32"},
        {"fallback": "error"},
        {"fallback": ["conv"]},
        {"parallel_fusion": False},
        {"tuning_logs": False},
        {"num_threads": 1},
    ],
    ids=str,
)
def test_options_that_mean_the_default_on_a_cpu(options: dict[str, Any]) -> None:
    assert tvm_edge.compile(conv_relu(), "llvm", **options).report.kernels
