"""From lowered modules to code that runs here or links for elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.support import cc

from tvm_edge.compiler.cuda import cuda_compiler
from tvm_edge.errors import ArtifactError, MissingDependencyError
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.host import machine
from tvm_edge.lowering import cuda_pipeline, opencl_intrinsics, opencl_pipeline
from tvm_edge.lowering.opencl_source import sources_rewritten

__all__ = ["BuiltLibrary", "build"]

# Kernels need no start-up code and only these libraries, by the names that every system has: a
# machine with gcc but without libc6-dev can link. libgcc has float16 conversions.
_LIBRARIES = ["-lgcc", "-l:libm.so.6", "-l:libc.so.6"]

_NO_PASSES = tvm.transform.Sequential([], name="AlreadyLowered")


class BuiltLibrary:
    """Code in memory.

    Parameters
    ----------
    executable : Executable
    resolved : ResolvedTarget
    make_smaller : callable, optional
        Builds the same with smaller work-groups; called if it is asked for.
    """

    def __init__(
        self,
        executable: tvm.runtime.Executable,
        resolved: ResolvedTarget,
        make_smaller: Callable[[], BuiltLibrary] | None = None,
    ) -> None:
        self._executable = executable
        self._resolved = resolved
        self._make_smaller = make_smaller

    @property
    def has_smaller(self) -> bool:
        """Whether :meth:`smaller` may be called."""
        return self._make_smaller is not None

    def smaller(self) -> BuiltLibrary:
        """The same with smaller work-groups; built when it is first asked for."""
        return self._smaller

    @cached_property
    def _smaller(self) -> BuiltLibrary:
        assert self._make_smaller is not None, "has_smaller says whether there is one"
        return self._make_smaller()

    def module(self) -> tvm.runtime.Module:
        """The code as LLVM's JIT loads it; needs no linker."""
        return self._executable.jit()

    def link(self, path: Path) -> None:
        """Write the code as a shared library.

        Raises
        ------
        MissingDependencyError
            No compiler to link with for the target's architecture.
        ArtifactError
            The linker failed.
        """
        linker = _linker(self._resolved.architecture)
        try:
            self._executable.export_library(str(path), fcompile=linker)
        except OSError as err:
            raise ArtifactError(
                f"the linker cannot be started: {err}; check the compiler "
                "(g++ on PATH, or the environment variable CXX)"
            ) from err
        except RuntimeError as err:  # tvm.support.cc wraps the linker's output
            lines = [line for line in str(err).splitlines() if line.strip()]
            reason = lines[1] if len(lines) > 1 else str(err)  # under "Compilation error:"
            raise ArtifactError(
                f"linking the library failed: {reason[:300]}; "
                "check the compiler and the space in the temporary folder (TMPDIR)"
            ) from err


def build(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    make_smaller: Callable[[], BuiltLibrary] | None = None,
) -> BuiltLibrary:
    """Generate code for a module in virtual-machine form.

    `make_smaller` is what :class:`BuiltLibrary` takes.

    Raises
    ------
    MissingDependencyError
        No compiler for CUDA.
    DeviceUnavailableError
        CUDA does not build for the target's architecture.
    """
    device_compiler: AbstractContextManager[None] = nullcontext()
    pipeline = "default"
    if resolved.kind == "opencl":
        opencl_intrinsics.register()
        opencl_pipeline.register()
        pipeline = opencl_pipeline.OPENCL
        device_compiler = sources_rewritten()
    if resolved.kind == "cuda":
        cuda_pipeline.register()
        pipeline = cuda_pipeline.CUDA
        device_compiler = cuda_compiler(str(resolved.target.attrs["arch"]))
    with device_compiler, resolved.target:
        executable = relax.build(
            mod, resolved.target, relax_pipeline=_NO_PASSES, tir_pipeline=pipeline
        )
    return BuiltLibrary(executable, resolved, make_smaller)


def _linker(architecture: str) -> Callable[..., Any]:
    if architecture == machine():
        compiler = cc.get_cc()
        package = "g++"
    else:
        compiler = shutil.which(f"{architecture}-linux-gnu-g++")
        package = f"g++-{architecture.replace('_', '-')}-linux-gnu"
    if compiler is None:
        raise MissingDependencyError(
            f"exporting a library for {architecture} needs a compiler to link with; "
            f"run: apt-get install {package}"
        )
    return cc.cross_compiler(compiler, options=["-nostdlib"], add_files=_LIBRARIES)
