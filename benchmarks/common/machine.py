"""Description of the machine that measures: CPU, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from typing import Any

__all__ = ["describe_machine"]

_PACKAGES = ("tvm-edge", "apache-tvm", "apache-tvm-ffi", "onnxruntime", "openvino", "numpy")


def describe_machine() -> dict[str, Any]:
    """CPU, cores, Python, package versions and today's date."""
    # Here, so that processes that measure another runtime do not hold TVM.
    from tvm_edge.hardware import resolve_target

    spec = resolve_target("llvm").spec
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": f"{spec.name} ({spec.key})",
        "cores": spec.cores,
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.date.today().isoformat(),
    }
