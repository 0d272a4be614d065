"""Compile CNNs for edge GPUs and CPUs beside the stock ``apache-tvm`` wheel.

>>> import tvm_edge
>>> model = tvm_edge.compile("model.onnx", "llvm")          # doctest: +SKIP
>>> outputs = model.run({"data": image})                    # doctest: +SKIP
>>> model.export("model.tvme")                              # doctest: +SKIP
>>> model = tvm_edge.load("model.tvme")                     # doctest: +SKIP

Names load at first use (PEP 562): importing this package costs no TVM, and loading an artifact
needs neither the compiler nor onnx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvm_edge._version import __version__

if TYPE_CHECKING:
    from tvm_edge.compiler.driver import analyze, compile
    from tvm_edge.diagnosis import Diagnosis, doctor
    from tvm_edge.errors import (
        ArtifactError,
        CompilationError,
        DeviceLost,
        DeviceUnavailableError,
        InputError,
        InvalidLaunch,
        InvalidModelError,
        MeasureTimeout,
        MemoryBudgetError,
        MissingDependencyError,
        PlacementError,
        RecordError,
        TuningError,
        TvmEdgeError,
        TvmEdgeWarning,
        UnsupportedOperatorError,
        WrongResult,
    )
    from tvm_edge.frontend.picture import Picture
    from tvm_edge.hardware import Device, DeviceSpec, devices
    from tvm_edge.report import CompileReport, Dim, TensorSpec
    from tvm_edge.rpc import Remote, connect
    from tvm_edge.runtime import BenchmarkResult, CompiledModel, Profile, load
    from tvm_edge.tuning import TuneResult, tune

_HOME = {
    "analyze": "compiler.driver",
    "compile": "compiler.driver",
    "Diagnosis": "diagnosis",
    "doctor": "diagnosis",
    "ArtifactError": "errors",
    "CompilationError": "errors",
    "DeviceLost": "errors",
    "DeviceUnavailableError": "errors",
    "InputError": "errors",
    "InvalidLaunch": "errors",
    "InvalidModelError": "errors",
    "MeasureTimeout": "errors",
    "MemoryBudgetError": "errors",
    "MissingDependencyError": "errors",
    "PlacementError": "errors",
    "RecordError": "errors",
    "TuningError": "errors",
    "TvmEdgeError": "errors",
    "TvmEdgeWarning": "errors",
    "UnsupportedOperatorError": "errors",
    "WrongResult": "errors",
    "Device": "hardware",
    "DeviceSpec": "hardware",
    "devices": "hardware",
    "CompileReport": "report",
    "Dim": "report",
    "TensorSpec": "report",
    "Remote": "rpc",
    "connect": "rpc",
    "BenchmarkResult": "runtime",
    "CompiledModel": "runtime",
    "Profile": "runtime",
    "load": "runtime",
    "TuneResult": "tuning",
    "tune": "tuning",
    "Picture": "frontend.picture",
}
# Of the API by their own names; "zoo" alone is in `__all__`, as the others load TVM.
_SUBPACKAGES = ("onnx_backend", "opencl", "ops", "workflow", "zoo")

__all__ = [  # noqa: RUF022 - the seven functions first, as a reader meets them
    "compile",
    "load",
    "analyze",
    "tune",
    "connect",
    "devices",
    "doctor",
    "ArtifactError",
    "BenchmarkResult",
    "CompilationError",
    "CompileReport",
    "CompiledModel",
    "Device",
    "DeviceLost",
    "DeviceSpec",
    "DeviceUnavailableError",
    "Diagnosis",
    "Dim",
    "InputError",
    "InvalidLaunch",
    "InvalidModelError",
    "MeasureTimeout",
    "MemoryBudgetError",
    "MissingDependencyError",
    "Picture",
    "PlacementError",
    "Profile",
    "RecordError",
    "Remote",
    "TensorSpec",
    "TuneResult",
    "TuningError",
    "TvmEdgeError",
    "TvmEdgeWarning",
    "UnsupportedOperatorError",
    "WrongResult",
    "__version__",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        if name in ("onnx_backend", "ops", "workflow"):
            importlib.import_module("tvm_edge.extras").require_compiler()
        return importlib.import_module(f"tvm_edge.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tvm_edge' has no attribute {name!r}")
    from tvm_edge.interrupts import hold_interrupts

    # TVM's import calls Python from C++, and what is imported by half cannot be imported again.
    with hold_interrupts():
        if _HOME[name] in ("compiler.driver", "hardware", "tuning"):
            importlib.import_module("tvm_edge.extras").require_compiler()
        value = getattr(importlib.import_module(f"tvm_edge.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
