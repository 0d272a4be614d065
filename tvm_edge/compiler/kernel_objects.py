"""Object code of kernels for a CPU: each by itself, on all cores, or from the cache.

A kernel is lowered and generated apart from the others of its model. So threads share the work,
and what is built does not depend on which model a kernel is of: it can be kept. TVM's passes and
LLVM run outside of Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import tvm
from tvm import tirx

from tvm_edge.errors import ArtifactError, one_line
from tvm_edge.host import allowed_cpus
from tvm_edge.lowering.deep_stack import map_on_deep_stacks
from tvm_edge.lowering.kernel_cache import KernelCache, entry_name, open_cache
from tvm_edge.lowering.object_files import object_code

__all__ = ["BuiltKernels", "build_kernels", "optimised", "temporary_files"]

_LENGTHS = 1
"""LLVM's level for functions that calculate lengths, which run once and have no loops."""


@dataclass(frozen=True)
class BuiltKernels:
    """Object code of a model's kernels.

    Attributes
    ----------
    objects : tuple of bytes
        ELF files, one for each kernel.
    cached : int
        Those that were in the cache.
    """

    objects: tuple[bytes, ...]
    cached: int


@dataclass(frozen=True)
class _Task:
    """A kernel to be built: its module, and what names it in the cache."""

    name: str
    mod: tvm.IRModule
    target: tvm.target.Target
    text: str


def build_kernels(
    functions: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc],
    target: tvm.target.Target,
    pipeline: str,
    progress: Callable[[int], None],
) -> BuiltKernels:
    """Lower kernels and generate their code.

    Parameters
    ----------
    functions : mapping of GlobalVar to PrimFunc
        Scheduled, and called by nobody but the virtual machine.
    target : Target
        A CPU.
    pipeline : str
        TVM's name of the passes that lower.
    progress : callable
        Called with the number of kernels that are built.

    Raises
    ------
    TvmEdgeError
        That of a kernel that cannot be built.
    """
    cache = open_cache()
    threads = len(allowed_cpus())
    made = map_on_deep_stacks(lambda one: _task(*one, target), functions.items(), threads)
    # The largest first: no thread is left with one of them at the end.
    tasks = sorted(made, key=lambda task: (-len(task.text), task.name))
    objects: dict[str, bytes] = {}
    cached = 0

    def build(task: _Task) -> tuple[str, bytes, bool]:
        return (task.name, *_from_cache(task, pipeline, cache))

    for name, code, was_cached in map_on_deep_stacks(build, tasks, threads):
        objects[name] = code
        cached += was_cached
        progress(len(objects))
    if cache is not None and cached < len(tasks):
        cache.make_room()
    return BuiltKernels(tuple(objects[task.name] for task in tasks), cached)


def optimised(target: tvm.target.Target, func: tirx.PrimFunc) -> tvm.target.Target:
    """Return the target of a function, with LLVM's level for what it calculates."""
    if not func.attrs.get("tirx.is_host_func", False):
        return target
    return tvm.target.Target({**target.export(), "opt-level": _LENGTHS})


def _task(gvar: tvm.ir.GlobalVar, func: tirx.PrimFunc, target: tvm.target.Target) -> _Task:
    mod = tvm.IRModule({gvar: func})
    return _Task(str(gvar.name_hint), mod, optimised(target, func), tvm.ir.save_json(func))


def _from_cache(task: _Task, pipeline: str, cache: KernelCache | None) -> tuple[bytes, bool]:
    """Return a kernel's object code, and whether it was in the cache."""
    if cache is None:
        return _object_code(task, pipeline), False
    name = entry_name(__file__, pipeline, task.name, str(task.target), task.text)
    known = cache.get(name)
    if known is not None:
        return known, True
    code = _object_code(task, pipeline)
    cache.put(name, code)
    return code, False


def _object_code(task: _Task, pipeline: str) -> bytes:
    with task.target:
        built = tvm.tirx.build(task.mod, target=task.target, pipeline=pipeline)
    with temporary_files():
        return object_code(built)


@contextmanager
def temporary_files() -> Iterator[None]:
    """Raise errors of temporary files as :exc:`~tvm_edge.errors.ArtifactError`."""
    try:
        yield
    except OSError as err:
        raise ArtifactError(
            f"the object files of the library cannot be written: {one_line(err)}; "
            "check the space in the temporary folder (TMPDIR)"
        ) from err
