"""From an ONNX graph to scheduled kernels and to numbers, without the rest of the compiler."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")  # TVM's default, half the cores, is one here

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi
from hypothesis import HealthCheck, settings
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, s_tir, tirx
from tvm.relax.backend import DispatchSortScan
from tvm.relax.frontend.onnx import from_onnx

from tests.kernels import built_for_cpu
from tests.onnx_models import session
from tvm_edge.compiler.build import build
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.lowering.cpu_functions import ExpandFunctions
from tvm_edge.schedules.base import Scheduled
from tvm_edge.schedules.cpu import schedule
from tvm_edge.schedules.cpu.loops import MIN_PARALLEL_WORK

AVX512 = DeviceSpec(
    key="test/avx512",
    kind="cpu",
    name="AVX-512",
    cores=2,
    simd_bytes=64,
    vector_registers=32,
    l2_cache=1 << 20,
)
AVX2 = DeviceSpec(
    key="test/avx2", kind="cpu", name="AVX2", cores=4, simd_bytes=32, l2_cache=1 << 18
)
NEON = DeviceSpec(
    key="test/neon", kind="cpu", name="NEON", cores=4, vector_registers=32, l2_cache=1 << 18
)
SPECS = (AVX512, AVX2, NEON)
BY_NAME = {spec.name: spec for spec in SPECS}

SWEEP = int(os.environ.get("TVM_EDGE_SWEEP", "1"))
"""Multiplies the number of random cases: 1 in CI, more when a template changes."""

TOLERANCE = 1e-5
"""Tolerance, of a tensor's largest value. A float32 sum of some thousand terms in another order
differs by about 1e-6; a wrong index differs by 1e-1."""


def sweep(examples: int) -> settings:
    """Settings of a property test that builds kernels.

    The first example is the simplest there is, and nothing random.
    """
    return settings(
        max_examples=examples * SWEEP,
        deadline=None,
        derandomize=SWEEP == 1,
        suppress_health_check=list(HealthCheck),
    )


_transform = relax.transform
_FUSE = tvm.transform.Sequential(
    [
        _transform.DecomposeOpsForInference(),
        DispatchSortScan(),
        _transform.LegalizeOps(),
        _transform.AnnotateTIROpPattern(),
        _transform.FuseOps(),
        _transform.FuseTIR(),
        _transform.DeadCodeElimination(),
    ]
)
_LOWER = tvm.transform.Sequential(
    [
        _transform.RewriteDataflowReshape(),
        _transform.ToNonDataflow(),
        _transform.RemovePurityChecking(),
        _transform.CallTIRRewrite(),
        _transform.StaticPlanBlockMemory(),
        _transform.LowerAllocTensor(),
        _transform.KillAfterLastUse(),
        _transform.LowerRuntimeBuiltin(),
        _transform.ComputePrimValue(),
        _transform.VMShapeLower(),
        _transform.AttachGlobalSymbol(),
    ]
)


class Graph:
    """An ONNX graph under construction; tensors are names, weights are inputs.

    As inputs weights need no constant folding, which costs an LLVM build for each of them.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []
        self.values: dict[str, np.ndarray] = {}

    def input(
        self,
        *shape: int,
        dtype: str = "float32",
        high: int = 8,
        mean: float = 0,
        symbolic: str = "",
    ) -> str:
        """A random input, normally distributed; integers lie in [0, high).

        Letters of `symbolic` name the symbolic dimensions: ``n???`` for a batch.
        """
        if dtype == "bool":
            value = self._random.random(shape) < 0.5
        elif dtype.startswith(("int", "uint")):
            value = self._random.integers(0, high, shape).astype(dtype)
        else:
            value = np.asarray(self._random.normal(mean, 1, shape), dtype)
        names = symbolic.ljust(len(shape), "?")
        declared = [s if n == "?" else n for s, n in zip(shape, names, strict=True)]
        return self.given(value, declared)

    def given(self, value: np.ndarray, shape: Sequence[int | str] | None = None) -> str:
        """An input of this value; its declared `shape` may name symbolic dimensions."""
        name = f"in{len(self.values)}"
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape or value.shape))
        self.values[name] = value
        return name

    def constant(self, value: Any) -> str:
        """A constant, for operators that want their parameters so; floats are float32."""
        name = f"constant{len(self._constants)}"
        array = np.asarray(value)
        array = array.astype("float32") if array.dtype == np.float64 else array
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        names = [f"{kind.lower()}{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def output(self, name: str, dtype: int = TensorProto.FLOAT) -> None:
        """Mark a tensor as an output of the graph."""
        self._outputs.append(helper.make_tensor_value_info(name, dtype, None))

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self._nodes, "test", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", 17)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets, ir_version=8)
        )


@dataclass(frozen=True)
class Kernel:
    """A kernel before and after scheduling."""

    name: str
    func: tirx.PrimFunc
    scheduled: Scheduled


def this_cpu() -> tvm.target.Target:
    """The machine the tests run on."""
    return tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})


def kernels_of(model: onnx.ModelProto | tvm.IRModule, spec: DeviceSpec = AVX512) -> list[Kernel]:
    """Legalise, fuse and schedule a model."""
    return _schedule(_fuse(model), spec)[1]


def _fuse(model: onnx.ModelProto | tvm.IRModule) -> tvm.IRModule:
    module = model if isinstance(model, tvm.IRModule) else from_onnx(model)
    with this_cpu():
        return _FUSE(module)


def _schedule(module: tvm.IRModule, spec: DeviceSpec) -> tuple[tvm.IRModule, list[Kernel]]:
    module = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    kernels = []
    for gvar, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            scheduled = schedule(func, spec)
            module[gvar] = scheduled.func
            kernels.append(Kernel(gvar.name_hint, func, scheduled))
    return module, kernels


def run(
    model: onnx.ModelProto | tvm.IRModule,
    inputs: Mapping[str, np.ndarray],
    spec: DeviceSpec = AVX512,
) -> tuple[list[np.ndarray], list[Kernel]]:
    """Schedule, build and run a model; its outputs and kernels."""
    module, kernels = _schedule(_fuse(model), spec)
    with this_cpu():
        lowered = _LOWER(module)
    built = build(lowered, resolve_target("llvm"))  # its kernels are in the cache
    machine = relax.VirtualMachine(built.module(), tvm.cpu())
    outputs = machine["main"](*(tvm.runtime.tensor(value) for value in inputs.values()))
    several = isinstance(outputs, list | tuple | tvm_ffi.Array)
    return [o.numpy() for o in (outputs if several else [outputs])], kernels


def check(graph: Graph, spec: DeviceSpec = AVX512) -> list[Kernel]:
    """Compare a graph with ONNX Runtime; its kernels, all of them sensibly scheduled."""
    model = graph.model()
    opened = session(model)
    expected = opened.run(None, graph.values)
    actual, kernels = run(model, graph.values, spec)
    for output, want, got in zip(opened.get_outputs(), expected, actual, strict=True):
        assert_close(got, want, f"{output.name} of\n{onnx.printer.to_text(model.graph)}")
    for kernel in kernels:
        assert_scheduled(kernel, spec)
    return kernels


def call(func: tirx.PrimFunc, *arrays: np.ndarray) -> np.ndarray:
    """Build a kernel and run it on arrays, the last of which is its output."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built_for_cpu(func)(*tensors)
    return tensors[-1].numpy()


def assert_close(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Floating-point results agree to :data:`TOLERANCE`, all others exactly."""
    assert actual.shape == expected.shape, f"{what}: {actual.shape} for {expected.shape}"
    if expected.dtype.kind != "f":
        assert np.array_equal(actual, expected), what
        return
    tolerance = TOLERANCE if expected.dtype == np.float32 else 1e-2
    largest = float(np.abs(expected).max(initial=1e-30))
    error = float(np.abs(actual.astype("float64") - expected).max(initial=0.0)) / largest
    assert error <= tolerance, f"{what}: error {error:.1e}"


# ----------------------------------------------------------------------------------- structure


def loop_kinds(func: tirx.PrimFunc) -> Counter[int]:
    """Count a function's loops of each kind."""
    kinds: Counter[int] = Counter()
    tvm_ffi.structural_walk(func.body, (tirx.For, lambda loop: kinds.update([int(loop.kind)])))
    return kinds


_VECTORIZE = tvm.transform.Sequential(
    [
        ExpandFunctions(),
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(True),
        s_tir.transform.StmtSimplify(),
    ]
)
"""TVM's lowering of a kernel up to where vector loops become vectors."""


def scalar_lanes(func: tirx.PrimFunc) -> list[str]:
    """Vector loops that TVM gave up on and emits lane by lane, at a fraction of the speed."""
    main = func.with_attr({"target": this_cpu(), "global_symbol": "main"})
    found: list[str] = []

    def visit(loop: tirx.For) -> None:
        if loop.loop_var.name.endswith(".s"):
            found.append(loop.loop_var.name)

    tvm_ffi.structural_walk(_VECTORIZE(tvm.IRModule({"main": main}))["main"], (tirx.For, visit))
    return found


def block_names(func: tirx.PrimFunc) -> set[str]:
    """The names of a function's blocks."""
    names: set[str] = set()
    tvm_ffi.structural_walk(func, (s_tir.SBlock, lambda block: names.add(block.name_hint)))
    return names


def assert_register_tile(func: tirx.PrimFunc) -> None:
    """A kernel sums vectors in registers, below a parallel loop."""
    sch = s_tir.Schedule(func)
    (name,) = (name for name in block_names(func) if name.endswith("_update"))
    block = sch.get_sblock(name)
    kinds = [sch.get(loop).kind for loop in sch.get_loops(block)]
    assert kinds[0] == tirx.ForKind.PARALLEL
    assert kinds[-1] == tirx.ForKind.VECTORIZED
    assert sch.get(block).writes[0].source.scope() == "local"


def iterations(func: tirx.PrimFunc) -> int:
    """Count the iterations of a function's busiest block; 0 if its shapes are symbolic."""
    most = 0

    def visit(block: Any) -> None:
        nonlocal most
        sizes = [var.dom.extent for var in block.iter_vars]
        if all(isinstance(size, tirx.IntImm) for size in sizes):
            most = max(most, int(np.prod([int(size) for size in sizes])))

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit))
    return most


def assert_scheduled(kernel: Kernel, spec: DeviceSpec) -> None:
    """A kernel with work for two cores runs on them, in vectors."""
    if iterations(kernel.func) < 8 * MIN_PARALLEL_WORK * spec.lanes():
        return
    kinds = loop_kinds(kernel.scheduled.func)
    assert tirx.ForKind.PARALLEL in kinds, f"{kernel.name} is serial:\n{kernel.scheduled.func}"
    assert tirx.ForKind.VECTORIZED in kinds, f"{kernel.name} is scalar:\n{kernel.scheduled.func}"


def rules(kernels: Iterable[Kernel]) -> list[str]:
    """The rules that took the kernels, sorted."""
    return sorted(kernel.scheduled.rule for kernel in kernels)
