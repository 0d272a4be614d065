"""Products on tensor cores, where a user allows tf32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

import tvm_edge
from tests.onnx_models import reference
from tests.schedules.gpu.graphs import conv, matrices, residual
from tests.schedules.gpu.harness import ORIN, gpu_functions, launches
from tests.schedules.harness import Graph
from tvm_edge.errors import InputError
from tvm_edge.schedules.base import PRECISION, Scheduled, workspace_of
from tvm_edge.schedules.gpu import schedule
from tvm_edge.schedules.gpu.product_tile import choose_warp_tile

GRAPHS = {
    "3x3": conv(1, 16, 7, 9, outputs=20, kernel=(3, 3), pads=[1] * 4),
    "strided": conv(2, 9, 13, 11, outputs=33, kernel=(3, 2), strides=[2, 3], pads=[1, 0, 2, 1]),
    "groups": conv(1, 32, 8, 8, outputs=48, kernel=(3, 3), group=2, dilations=[2, 2]),
    "1x1": conv(1, 40, 6, 6, outputs=16, kernel=(1, 1), epilogue=False),
    "parts": conv(1, 256, 7, 7, outputs=64, kernel=(3, 3), pads=[1] * 4),
    "batch": matrices((3, 17, 21), (3, 21, 20)),
    "residual": residual(),
}
# Half a unit in the last place of tf32, and what a float32 sum would not reach.
ROUNDING, EXACT = 2.0**-11, 1e-6


def scheduled(graph: Graph, precision: str = "tf32") -> Scheduled:
    functions = [f for _, f in gpu_functions(graph.model()).functions_items()]
    (func,) = (f for f in functions if isinstance(f, tvm.tirx.PrimFunc))
    return schedule(func.with_attr(PRECISION, precision), ORIN)


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
def test_results(graph: Graph, gpu: str) -> None:
    """Off by some rounding errors, so that tf32 it is, and by no more."""
    model = graph.model()
    compiled = tvm_edge.compile(model, gpu, precision="tf32", fallback="none")
    assert "tensor_core" in [kernel.rule for kernel in compiled.report.kernels]
    actual = compiled.run(graph.values)
    for name, value in reference(model, graph.values).items():
        error = float(np.abs(actual[name] - value).max() / np.abs(value).max())
        assert EXACT < error < 4 * ROUNDING, name


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
def test_instructions(graph: Graph) -> None:
    """Without a device: the sources multiply on tensor cores, and fill whole warps."""
    made = scheduled(graph)
    assert made.rule == "tensor_core"
    first, *_ = launches(made.func)
    assert first.items % 32 == 0 and first.items <= ORIN.max_work_group_size
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_87"}, host="llvm")
    with target:
        built = tvm.compile(made.func.with_attr("global_symbol", "main"), target=target)
    source = built.mod.imports[0].inspect_source()
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in source
    assert source.count("cvt.rna.tf32.f32") == 1


def test_float32_stays_what_it_is() -> None:
    assert scheduled(GRAPHS["3x3"], "float32").rule == "tiled"


@pytest.mark.parametrize("limits", [{"max_work_group_size": 64}, {"local_memory": 8192}], ids=str)
def test_tiles_shrink_to_what_a_device_takes(limits: dict[str, int]) -> None:
    spec = replace(ORIN, **limits)
    for extents in [(1, 64, 3136, 576), (8, 17, 9, 80), (1, 2048, 49, 4608)]:
        tile = choose_warp_tile(extents, spec)
        assert tile is not None
        assert tile.items <= spec.max_work_group_size
        assert tile.local_bytes <= spec.local_memory


def test_few_results_are_shared_out() -> None:
    made = scheduled(conv(1, 512, 7, 7, outputs=512, kernel=(3, 3), pads=[1] * 4))
    assert workspace_of(made.func) and len(launches(made.func)) == 2


@pytest.mark.parametrize(
    "target", ["llvm", "opencl", "mali-t860", {"kind": "cuda", "arch": "sm_75"}], ids=str
)
def test_devices_without_are_refused(target: object) -> None:
    graph = GRAPHS["1x1"]
    with pytest.raises(InputError, match=r"precision='tf32' needs tensor cores") as caught:
        tvm_edge.compile(graph.model(), target, precision="tf32")
    assert caught.value.name == "precision"
