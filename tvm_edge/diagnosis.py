"""``doctor``: parts of the stack around tvm-edge that are here or missing, and what mends them.

Nothing is imported from TVM before it is known to be there.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import io
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tvm_edge._version import __version__
from tvm_edge.opencl.diagnosis import diagnose

__all__ = ["Check", "Diagnosis", "Status", "doctor"]

# With apache-tvm-ffi 0.1.15.post2, ToJSONGraph (tvm.ir.save_json, MetaSchedule) segfaults.
PINS = {"apache-tvm": ("0.27.0.post1",), "apache-tvm-ffi": ("0.1.14.post1", "0.1.14.post0")}
_REINSTALL = f"pip install --force-reinstall apache-tvm=={PINS['apache-tvm'][0]}"

Status = Literal["ok", "missing", "wrong"]


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes
    ----------
    name : str
    status : {"ok", "missing", "wrong"}
    found : str
        State of it here.
    needed_for : str
        Features that do not work without it.
    command : str
        Command that mends it; empty if nothing is wrong.
    """

    name: str
    status: Status
    found: str
    needed_for: str
    command: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`doctor`.

    Attributes
    ----------
    checks : tuple[Check, ...]
    """

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Return whether models can be compiled and run on the CPU."""
        needed = ("apache-tvm", "apache-tvm-ffi", "LLVM")
        return all(check.status == "ok" for check in self.checks if check.name in needed)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return {"healthy": self.healthy, "checks": [asdict(check) for check in self.checks]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Diagnosis:
        """The inverse of :meth:`to_dict`."""
        return cls(tuple(Check(**check) for check in fields["checks"]))

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("", "check", "found", "needed for", "to mend it"):
            table.add_column(column, overflow="fold")
        marks = {"ok": "ok", "missing": "--", "wrong": "!!"}
        for check in self.checks:
            table.add_row(
                marks[check.status],
                *(Text(t) for t in (check.name, check.found, check.needed_for, check.command)),
            )
        out = io.StringIO()
        Console(file=out, width=120, no_color=True, highlight=False).print(table)
        return out.getvalue()


def doctor() -> Diagnosis:
    """Look at the pinned packages, LLVM, a C++ compiler, CUDA and OpenCL.

    Returns
    -------
    Diagnosis
        Each check with what was found, what is missing, and the command that mends it.
    """
    return Diagnosis(tuple(_checks()))


def _checks() -> Iterator[Check]:
    yield Check(
        "tvm-edge", "ok", f"{__version__} on Python {platform.python_version()}", "everything"
    )
    for package, versions in PINS.items():
        yield _pin(package, versions)
    yield _llvm()
    yield _compiler()
    for package, extra, purpose in (
        ("onnx", "onnx", "reading ONNX models"),
        ("onnxscript", "onnx", "reading ONNX models"),
        ("onnxruntime", "bench", "zoo:NAME_int8, tests, benchmarks"),
    ):
        yield _optional(package, extra, purpose)
    yield _cuda()
    yield _opencl()


def _pin(package: str, versions: tuple[str, ...]) -> Check:
    command = f"pip install {package}=={versions[0]}"
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return Check(package, "missing", "not installed", "everything", command)
    if found not in versions:
        return Check(package, "wrong", found, f"everything; {versions[0]} is tested", command)
    return Check(package, "ok", found, "everything")


def _llvm() -> Check:
    purpose = "compiling for CPUs"
    try:
        import tvm
    except (ImportError, OSError) as err:
        return Check(
            "LLVM",
            "missing",
            f"TVM does not load: {err}",
            purpose,
            _REINSTALL,
        )
    if os.environ.get("TVM_USE_RUNTIME_LIB") == "1":
        return Check(
            "LLVM",
            "missing",
            "TVM_USE_RUNTIME_LIB=1 loads the runtime tier only",
            purpose,
            "unset TVM_USE_RUNTIME_LIB",
        )
    if not hasattr(tvm, "relax"):  # TVM falls back without a word
        return Check(
            "LLVM",
            "missing",
            "TVM's runtime tier only: libtvm_compiler.so is not there, or does not load",
            purpose,
            _REINSTALL,
        )
    from tvm.target import codegen

    major, cpu = codegen.llvm_version_major(), codegen.llvm_get_system_cpu()
    return Check("LLVM", "ok", f"LLVM {major} in TVM {tvm.__version__}, this CPU: {cpu}", purpose)


def _compiler() -> Check:
    purpose = "linking exported artifacts"
    for name in ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path:
            return Check("C++ compiler", "ok", path, purpose)
    return Check("C++ compiler", "missing", "none on PATH", purpose, "apt-get install g++")


def _optional(package: str, extra: str, purpose: str) -> Check:
    if importlib.util.find_spec(package) is None:
        return Check(
            package, "missing", "not installed", purpose, f"pip install 'tvm-edge[{extra}]'"
        )
    return Check(package, "ok", importlib.metadata.version(package), purpose)


def _cuda() -> Check:
    purpose = "target 'cuda'"
    if not _loads("libcuda.so.1"):
        return Check(
            "CUDA",
            "missing",
            "no NVIDIA driver (libcuda.so.1)",
            purpose,
            "install NVIDIA's driver for this GPU",
        )
    if not _loads("libcudart.so.13"):
        return Check(
            "CUDA",
            "missing",
            "the driver, but no libcudart.so.13",
            purpose,
            "pip install 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-nvrtc==13.*'",
        )
    return Check("CUDA", "ok", "driver and CUDA 13 runtime", purpose)


def _opencl() -> Check:
    purpose = "target 'opencl'"
    finding = diagnose()
    status: Status = "wrong" if finding.broken else "ok" if finding.usable else "missing"
    return Check("OpenCL", status, finding.found, purpose, finding.command)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
