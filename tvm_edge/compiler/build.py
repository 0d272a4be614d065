"""From lowered modules to code that runs here or links for elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_edge.errors import ArtifactError, one_line
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.lowering import cpu_pipeline, cuda_pipeline, opencl_intrinsics, opencl_pipeline
from tvm_edge.lowering.cuda_compiler import cuda_compiler
from tvm_edge.lowering.linker import find_linker
from tvm_edge.lowering.object_files import link_library
from tvm_edge.lowering.opencl_source import sources_rewritten
from tvm_edge.report import Launches

__all__ = ["BuiltLibrary", "build", "described_target"]

# LLVM's level for functions that launch kernels.
_LAUNCHES = 1

_NO_PASSES = tvm.transform.Sequential([], name="AlreadyLowered")


class BuiltLibrary:
    """Code in memory.

    Parameters
    ----------
    executable : Executable
    resolved : ResolvedTarget
    make_smaller : callable, optional
        Builds the same with smaller work-groups; called if it is asked for.
    launches : Launches, optional
        What it launches, if that is not what the model's report says.
    """

    def __init__(
        self,
        executable: tvm.runtime.Executable,
        resolved: ResolvedTarget,
        make_smaller: Callable[[], BuiltLibrary] | None = None,
        launches: Launches | None = None,
    ) -> None:
        self.launches = launches
        self._executable = executable
        self._resolved = resolved
        self._make_smaller = make_smaller

    @property
    def has_smaller(self) -> bool:
        """Return whether :meth:`smaller` may be called."""
        return self._make_smaller is not None

    def smaller(self) -> BuiltLibrary:
        """Return the library in smaller work-groups; built when it is first asked for."""
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
        linker = find_linker(self._resolved.architecture)
        try:
            link_library(self._executable, path, linker)
        except RuntimeError as err:
            raise ArtifactError(
                f"TVM cannot write the object files of the library: {one_line(err)}; "
                "check the space in the temporary folder (TMPDIR)"
            ) from err


def build(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    make_smaller: Callable[[], BuiltLibrary] | None = None,
    launches: Launches | None = None,
) -> BuiltLibrary:
    """Generate code for a module in virtual-machine form.

    `make_smaller` and `launches` are what :class:`BuiltLibrary` takes.

    Raises
    ------
    MissingDependencyError
        No compiler for CUDA.
    DeviceUnavailableError
        CUDA does not build for the target's architecture.
    """
    device_compiler: AbstractContextManager[None] = nullcontext()
    cpu_pipeline.register()
    pipeline = cpu_pipeline.CPU
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
            _without_aliases(_with_a_function(mod)),
            _for_launches(resolved.target, mod),
            relax_pipeline=_NO_PASSES,
            tir_pipeline=pipeline,
        )
    return BuiltLibrary(executable, resolved, make_smaller, launches)


def _for_launches(target: tvm.target.Target, mod: tvm.IRModule) -> tvm.target.Target:
    """The target, whose host is optimised for less where its code only launches kernels.

    Checks of arguments and calls of the driver are no faster by what LLVM does for loops, and are a
    twentieth of a compilation with it.
    """
    kinds = {
        str(func.attrs["target"].kind.name)
        for func in mod.functions.values()
        if isinstance(func, tirx.PrimFunc) and func.attrs is not None and "target" in func.attrs
    }
    if target.host is None or "llvm" in kinds or target.host.kind.name != "llvm":
        return target
    host = tvm.target.Target({**target.host.export(), "opt-level": _LAUNCHES})
    return tvm.target.Target(target, host)


def _with_a_function(mod: tvm.IRModule) -> tvm.IRModule:
    """A module with code for the host.

    A model of constants alone has none, and TVM would export such a library as C, which a machine
    without the headers of its C library cannot compile.
    """
    if any(isinstance(func, tirx.PrimFunc) for func in mod.functions.values()):
        return mod
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))
    symbol = "nothing"
    mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    mod[symbol] = nothing.with_attr({"global_symbol": symbol, "tirx.is_host_func": True})
    return mod


def _without_aliases(mod: tvm.IRModule) -> tvm.IRModule:
    """Say of the functions that calculate lengths that their one tensor has no other name.

    TVM's code generator takes one function that may have aliases for all of a module. Convolutions
    then kept their accumulators in memory, and took 2.7 times as long.
    """
    updated = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and func.attrs.get("tirx.is_host_func", False):
            updated.update_func(gvar, func.with_attr("tirx.noalias", True))
    return updated


def described_target(resolved: ResolvedTarget) -> dict[str, Any]:
    """Return the description of a model's target; ``ModelInfo.target``."""
    return {
        "kind": resolved.kind,
        "config": str(resolved.target),
        "triple": resolved.triple,
        "architecture": resolved.architecture,
        "features": sorted(resolved.features),
        "device": resolved.spec.to_dict(),
    }
