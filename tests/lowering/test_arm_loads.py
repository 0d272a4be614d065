"""Inner loops for Arm: elements of whole vectors, halves where a core wants them, no spills."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.arm_mca.assembly import Code
from benchmarks.arm_mca.kernels import Kernel, dense_kernel
from tvm_edge.schedules.conv_workload import ConvWorkload

# What LLVM makes of these kernels is tested.
pytestmark = pytest.mark.usefixtures("optimised")

_POINTWISE = ConvWorkload(1, 64, 14, 14, 64, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
_STRIDED = replace(_POINTWISE, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))


def _kernel(workload: ConvWorkload, core: str, dtype: str) -> Kernel:
    kernel = dense_kernel(replace(workload, dtype=dtype), core)
    assert kernel is not None
    return kernel


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("core", "dtype", "instruction"),
    [
        ("cortex-a72", "float32", "fmla"),
        ("cortex-a76", "float32", "fmla"),
        ("cortex-a76", "int8", "sdot"),
        ("cortex-a55", "float32", "fmla"),
        ("cortex-a55", "int8", "sdot"),
    ],
)
@pytest.mark.parametrize("workload", [_POINTWISE, _STRIDED], ids=["1x1", "3x3"])
def test_loops_multiply_by_elements(
    workload: ConvWorkload, core: str, dtype: str, instruction: str
) -> None:
    """Each of them by one; nothing is spilled, broadcast or loaded element by element."""
    kernel = _kernel(workload, core, dtype)
    code = Code(kernel.assembly())
    loops = kernel.loops(code)
    assert sum(share for share, _ in loops) == pytest.approx(1)
    for _, loop in loops:
        macs = [one for one in loop.body if one.is_mac]
        assert {one.name for one in macs} == {instruction}
        assert all(one.text.endswith("]") for one in macs)
        assert loop.spills == 0
        assert not [one for one in loop.body if one.name in ("dup", "ld1r")]
        wide = [one for one in loop.body if one.loads and one.bits == 128]
        assert bool(wide) == (core != "cortex-a55")
