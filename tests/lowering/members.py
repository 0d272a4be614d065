"""Kernels to compose: members with inputs and expected results, and how they run."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")  # TVM's default, half the cores, is one here

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, te, tirx, topi

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.lowering import cpu_pipeline, cuda_pipeline, opencl_intrinsics, opencl_pipeline
from tvm_edge.lowering.cuda_compiler import cuda_compiler
from tvm_edge.lowering.opencl_source import sources_rewritten
from tvm_edge.schedules import cpu, gpu, grid
from tvm_edge.schedules.gpu.subgroup_calls import PIN

PIPELINES = {"llvm": cpu_pipeline, "opencl": opencl_pipeline, "cuda": cuda_pipeline}


@dataclass(frozen=True)
class Member:
    """An operator: what it is, what it is given, and what it gives in float64."""

    func: tirx.PrimFunc
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray

    def scheduled(self, spec: DeviceSpec) -> tirx.PrimFunc:
        """With loops for a device."""
        if spec.kind == "cpu":
            return cpu.schedule(self.func, spec).func
        if not spec.on_cpu:
            return gpu.schedule(self.func, spec).func
        made = grid.schedule(self.func, spec).func
        if not made.attrs.get(grid.GRID, False):
            return made
        launched = grid.as_grid(made)
        assert launched is not None
        return launched


def _made(
    inputs: Sequence[np.ndarray],
    compute: Callable[..., te.Tensor],
    expected: Callable[..., np.ndarray],
) -> Member:
    given = [te.placeholder(a.shape, str(a.dtype), name=f"in{i}") for i, a in enumerate(inputs)]
    func = te.create_prim_func([*given, compute(*given)])
    wide = expected(*(array.astype("float64") for array in inputs))
    return Member(func.with_attr("tirx.noalias", True), tuple(inputs), wide)


def _random(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype("float32") for shape in shapes]


def product(seed: int, rows: int, terms: int, columns: int) -> Member:
    """A product of matrices, with a ReLU."""
    return _made(
        _random(seed, (rows, terms), (terms, columns)),
        lambda a, b: topi.nn.relu(topi.matmul(a, b)),
        lambda a, b: np.maximum(a @ b, 0),
    )


def conv(seed: int, channels: int, size: int, filters: int, window: int = 3) -> Member:
    """A convolution with padding."""

    def expected(data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        by = window // 2
        padded = np.pad(data, ((0, 0), (0, 0), (by, by), (by, by)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), (2, 3))
        return np.einsum("nchwij,ocij->nohw", windows, weight)

    return _made(
        _random(seed, (1, channels, size, size), (filters, channels, window, window)),
        lambda data, weight: topi.nn.conv2d(data, weight, 1, window // 2, 1),
        expected,
    )


def element_wise(seed: int, *shape: int) -> Member:
    """A sum of two tensors, bounded."""
    return _made(
        _random(seed, shape, shape[-1:]),
        lambda a, b: te.compute(
            shape, lambda *i: te.tanh(a[i] + b[i[-1]]) * tirx.const(0.5, "float32"), name="bounded"
        ),
        lambda a, b: np.tanh(a + b) * 0.5,
    )


def sums(seed: int, rows: int, terms: int) -> Member:
    """Sums of rows: a work-group for each, that meets at barriers."""
    return _made(
        _random(seed, (rows, terms)), lambda a: topi.sum(a, axis=1), lambda a: a.sum(axis=1)
    )


def largest(seed: int, rows: int, terms: int) -> Member:
    """The largest of each row of integers."""
    random = np.random.default_rng(seed)
    array = random.integers(-1000, 1000, (rows, terms)).astype("int32")
    return _made([array], lambda a: topi.max(a, axis=1), lambda a: a.max(axis=1))


def softmax(seed: int, rows: int, columns: int) -> Member:
    """Several launches, with workspace between them."""

    def expected(a: np.ndarray) -> np.ndarray:
        shares = np.exp(a - a.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    return _made(_random(seed, (rows, columns)), lambda a: topi.nn.softmax(a, axis=1), expected)


def some(seed: int) -> list[Member]:
    """Two to five members of any kind and size."""
    random = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return int(random.integers(low, high))

    makers: list[Callable[[int], Member]] = [
        lambda s: product(s, size(9, 70), size(8, 200), size(5, 70)),
        lambda s: conv(s, size(2, 20), size(5, 15), size(3, 20), int(random.choice([1, 3]))),
        lambda s: element_wise(s, *(size(1, 9) for _ in range(size(1, 4)))),
        lambda s: sums(s, size(1, 9), size(64, 400)),
        lambda s: softmax(s, size(2, 9), size(3, 90)),
    ]
    return [makers[size(0, len(makers))](10 * seed + i) for i in range(size(2, 6))]


# ------------------------------------------------------------------------------------------ to run


def build(func: tirx.PrimFunc, resolved: ResolvedTarget) -> Any:
    """Code of a kernel, by the passes that a model's go through."""
    pipeline = PIPELINES[resolved.kind]
    pipeline.register()
    opencl_intrinsics.register()
    how: Any = nullcontext()
    if resolved.kind == "opencl":
        how = sources_rewritten()
    if resolved.kind == "cuda":
        how = cuda_compiler(str(resolved.target.attrs["arch"]))
    name = {"llvm": "CPU", "opencl": "OPENCL", "cuda": "CUDA"}[resolved.kind]
    with how, resolved.target:
        return tvm.tirx.build(
            func.with_attr("global_symbol", "main"),
            target=resolved.target,
            pipeline=getattr(pipeline, name),
        )


def run(func: tirx.PrimFunc, inputs: Sequence[np.ndarray], resolved: ResolvedTarget) -> list[Any]:
    """Run a kernel and return its outputs, the parameters after the inputs."""
    device = tvm.device("cpu" if resolved.kind == "llvm" else resolved.kind, 0)
    made = [
        np.full([int(size) for size in param.shape], 77).astype(str(param.dtype))
        for param in func.params[len(inputs) :]
    ]
    tensors = [tvm.runtime.tensor(array, device) for array in (*inputs, *made)]
    build(func, resolved)["main"](*tensors)
    return [tensor.numpy() for tensor in tensors[len(inputs) :]]


# --------------------------------------------------------------------------------------- structure


def local_bytes(func: tirx.PrimFunc) -> list[int]:
    """Local memory that each launch of a lowered kernel allocates."""
    found: list[int] = []

    def launch(node: tirx.AttrStmt) -> Any:
        if node.attr_key != "thread_extent":
            return None
        total = 0

        def allocate(inner: tirx.AllocBuffer) -> None:
            nonlocal total
            if inner.buffer.scope() == "shared":
                item = tvm.DataType(str(inner.buffer.dtype)).itemsize
                total += int(np.prod([int(d) for d in inner.buffer.shape])) * item

        tvm_ffi.structural_walk(node, (tirx.AllocBuffer, allocate))
        found.append(total)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, launch), order="pre")
    return found


def assert_barriers_are_met(func: tirx.PrimFunc) -> int:
    """No barrier is behind a condition, or in a loop, that asks for an index of a work-item.

    Returns
    -------
    int
        How many barriers there are.
    """
    items: list[tirx.Var] = []

    def index(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent" and str(node.node.thread_tag).startswith("threadIdx"):
            items.append(node.node.var)

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, index))

    def barriers(node: Any) -> int:
        count = 0

        def call(node: ir.Call) -> None:
            nonlocal count
            count += isinstance(node.op, ir.Op) and node.op.name == "tirx.tvm_storage_sync"

        tvm_ffi.structural_walk(node, (ir.Call, call))
        return count

    def asks(node: Any) -> bool:
        found = False

        def var(node: tirx.Var) -> None:
            nonlocal found
            found |= any(node.same_as(item) for item in items)

        tvm_ffi.structural_walk(node, (tirx.Var, var))
        return found

    def branch(node: tirx.IfThenElse) -> None:
        assert not (barriers(node) and asks(node.condition)), str(node)

    def loop(node: tirx.For) -> None:
        assert not (barriers(node) and (asks(node.min) or asks(node.extent))), str(node)

    tvm_ffi.structural_walk(func.body, ((tirx.IfThenElse, branch), (tirx.For, loop)))
    return barriers(func.body)


def pinned(member: Member, size: int, spec: DeviceSpec) -> tirx.PrimFunc:
    """A scheduled member that requires sub-groups of `size`."""
    mark = tirx.Evaluate(tirx.call_extern("int32", PIN, size))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        return tirx.SeqStmt([mark, node])

    func = member.scheduled(spec)
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, store)))
