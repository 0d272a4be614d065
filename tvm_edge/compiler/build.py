"""From lowered modules to code that runs here or links for elsewhere."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.runtime import _ffi_api
from tvm_ffi_orcjit import default_session

from tvm_edge.compiler.kernel_objects import BuiltKernels, build_kernels, temporary_files
from tvm_edge.errors import TvmEdgeWarning
from tvm_edge.files import temporary_folder
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.lowering import cpu_pipeline, cuda_pipeline, opencl_intrinsics, opencl_pipeline
from tvm_edge.lowering.cuda_compiler import cuda_compiler, makes_machine_code
from tvm_edge.lowering.linker import find_linker
from tvm_edge.lowering.object_files import object_code
from tvm_edge.lowering.opencl_source import sources_rewritten
from tvm_edge.native import kernels_on_pool
from tvm_edge.report import Launches

__all__ = ["BuiltLibrary", "build", "described_target"]

_LAUNCHES = 1
"""LLVM's level for functions that launch kernels."""

_SOURCE_ALONE = (
    "the artifact has CUDA kernels as source code: without NVIDIA's driver (libcuda.so.1) on this "
    "machine TVM does not compile them, and the machine that loads the artifact needs nvcc or "
    "NVRTC, and TVM's compiler. Compile on a machine with the driver for one that needs neither; "
    "its GPU may be another"
)


class BuiltLibrary:
    """Object code in memory: what is exported, and what runs.

    Parameters
    ----------
    executable : Executable
        Instructions of the virtual machine, with the code of devices.
    kernels : BuiltKernels
        Kernels for the CPU.
    resolved : ResolvedTarget
    make_smaller : callable, optional
        Builds the same with smaller work-groups; called if it is asked for.
    launches : Launches, optional
        What it launches, if that is not what the model's report says.
    """

    def __init__(
        self,
        executable: tvm.runtime.Executable,
        kernels: BuiltKernels,
        resolved: ResolvedTarget,
        make_smaller: Callable[[], BuiltLibrary] | None = None,
        launches: Launches | None = None,
    ) -> None:
        self.launches = launches
        self.kernels = kernels
        self._executable = executable
        self._resolved = resolved
        self._make_smaller = make_smaller
        self._objects = (*_host_objects(executable, resolved), *kernels.objects)

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

    def device_sources(self) -> list[str]:
        """Return the source code of kernels for devices, one text for each of their modules."""
        pending, found = [self._executable.mod], []
        while pending:
            module = pending.pop()
            pending.extend(module.imports)
            if module.kind == self._resolved.kind:
                found.append(str(module.inspect_source()))
        return found

    def module(self) -> tvm.runtime.Module:
        """The code, placed in memory: no linker is needed, and none is generated.

        Raises
        ------
        ArtifactError
            The temporary folder is full.
        """
        with self._files() as objects, kernels_on_pool():
            # Kernels call nothing of C++: no compiler has to be asked for its library.
            return default_session().load_module(objects, cxx="true")

    def link(self, path: Path) -> None:
        """Write the code as a shared library.

        Raises
        ------
        MissingDependencyError
            No compiler to link with for the target's architecture.
        ArtifactError
            The linker failed, or the temporary folder is full.
        """
        linker = find_linker(self._resolved.architecture)
        if self._resolved.kind == "cuda" and not makes_machine_code():
            warnings.warn(_SOURCE_ALONE, TvmEdgeWarning, stacklevel=5)
        with self._files() as objects:
            linker(str(path), objects)

    @contextmanager
    def _files(self) -> Iterator[list[str]]:
        """Object files in a folder of their own: ORC tells their initialisers apart by the path."""
        with ExitStack() as stack:
            with temporary_files():  # what is done with the files has errors of its own
                folder = stack.enter_context(temporary_folder("objects"))
                paths = [folder / f"{number}.o" for number in range(len(self._objects))]
                for path, code in zip(paths, self._objects, strict=True):
                    path.write_bytes(code)
            yield [str(path) for path in paths]


def _host_objects(executable: tvm.runtime.Executable, resolved: ResolvedTarget) -> list[bytes]:
    """Object files of all but the kernels for the CPU."""
    imports = _ffi_api.ModulePackImportsToLLVM(
        executable.mod, False, json.dumps({"kind": "llvm", "mtriple": resolved.triple}), ""
    )
    host = executable.mod._collect_dso_modules()
    with temporary_files():
        return [object_code(module) for module in (*host, imports)]


def build(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    make_smaller: Callable[[], BuiltLibrary] | None = None,
    launches: Launches | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> BuiltLibrary:
    """Generate code for a module in virtual-machine form.

    `make_smaller` and `launches` are what :class:`BuiltLibrary` takes. `progress` is called with
    the steps that are done, and all: one for each kernel for the CPU, and one for all else.

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
    builder = relax.ExecBuilder()
    with resolved.target:
        functions = vm_build._vmcodegen(builder, mod)
    on_cpu, on_device = _by_device(functions, resolved)
    steps = len(on_cpu) + 1
    progress(0, steps)
    kernels = build_kernels(
        on_cpu, resolved.cpu.target, pipeline, lambda done: progress(done, steps)
    )
    with device_compiler, resolved.target:
        executable = vm_build._vmlink(
            builder, _for_launches(resolved.target), on_device, tir_pipeline=pipeline
        )
    library = BuiltLibrary(executable, kernels, resolved, make_smaller, launches)
    progress(steps, steps)
    return library


def _by_device(
    functions: tvm.IRModule, resolved: ResolvedTarget
) -> tuple[dict[tvm.ir.GlobalVar, tirx.PrimFunc], tvm.IRModule]:
    """Split functions into those that the CPU runs, and those whose launches it calls.

    The latter are never empty, as TVM would export a library without code for the host as C, which
    a machine without the headers of its C library cannot compile.
    """
    on_cpu: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    on_device: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for gvar, func in functions.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        target = func.attrs.get("target", resolved.target)
        is_host = func.attrs.get("tirx.is_host_func", False) or target.kind.name == "llvm"
        (on_cpu if is_host else on_device)[gvar] = func
    if not on_device:
        symbol = "nothing"
        nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))
        on_device[tvm.ir.GlobalVar(symbol)] = nothing.with_attr(
            {"global_symbol": symbol, "tirx.is_host_func": True}
        )
    return on_cpu, tvm.IRModule(on_device, attrs=functions.attrs)


def _for_launches(target: tvm.target.Target) -> tvm.target.Target:
    """The target, whose host is optimised for less: its code only launches kernels.

    Checks of arguments and calls of the driver are no faster by what LLVM does for loops, and are a
    twentieth of a compilation with it.
    """
    if target.host is None or target.host.kind.name != "llvm":
        return target
    host = tvm.target.Target({**target.host.export(), "opt-level": _LAUNCHES})
    return tvm.target.Target(target, host)


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
