"""Inner loops for Arm: elements of whole vectors, halves where a core wants them, no spills."""

from __future__ import annotations

from collections import Counter
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


@pytest.mark.parametrize("workload", [_POINTWISE, _STRIDED], ids=["1x1", "3x3"])
def test_iterations_in_order_begin_with_what_is_loaded(workload: ConvWorkload) -> None:
    kernel = _kernel(workload, "cortex-a55", "float32")
    for _, loop in kernel.loops(Code(kernel.assembly())):
        assert [one.is_mac for one in loop.body[:6]].count(True) >= 2


def test_taps_in_8_bits_share_vectors_of_pixels_in_order() -> None:
    """Three taps of five pixels read seven, not fifteen, and nothing is spilled."""
    kernel = _kernel(replace(_STRIDED, strides=(1, 1), width=20), "cortex-a55", "int8")
    _, loop = max(kernel.loops(Code(kernel.assembly())), key=lambda item: item[0])
    assert (loop.accumulators, loop.macs, loop.spills) == (20, 3 * 4 * 20, 0)
    halves = sum(one.loads and one.bits == 64 for one in loop.body)
    assert halves == 3 * 16 + 7


@pytest.mark.parametrize(("core", "pixels"), [("cortex-a53", 3), ("cortex-a72", 4)])
@pytest.mark.parametrize("workload", [_POINTWISE, _STRIDED], ids=["1x1", "3x3"])
def test_loops_without_dot_products_add_in_16_bits(
    workload: ConvWorkload, core: str, pixels: int
) -> None:
    """Two products and a sum for each accumulator; pairs of channels are broadcast elements."""
    kernel = _kernel(workload, core, "int8")
    loops = kernel.loops(Code(kernel.assembly()))
    assert sum(share for share, _ in loops) == pytest.approx(1)
    assert max(loop.accumulators for _, loop in loops) == 4 * pixels
    for _, loop in loops:
        names = Counter(one.name for one in loop.body)
        assert names["smull"] == names["smlal"] == names["sadalp"] == loop.macs
        assert loop.spills == 0
        assert names["dup"] == loop.macs // 2 and not names["ld1r"]


@pytest.mark.parametrize("core", ["cortex-a72", "cortex-a76"])
def test_first_layers_keep_the_pixels_that_windows_share(core: str) -> None:
    first = ConvWorkload(1, 3, 75, 75, 32, (3, 3), (2, 2), (0, 0, 0, 0), (1, 1), 1)
    kernel = _kernel(first, core, "float32")
    loops = kernel.loops(Code(kernel.assembly()))
    assert sum(share for share, _ in loops) > 0.9  # a pixel that is left has no loop
    assert [loop.spills for _, loop in loops] == [0] * len(loops)


def test_seven_taps_of_a_block_are_one_run_of_float16() -> None:
    """After runs of a block's eight channels a loop would add to sums on the stack."""
    taps = replace(_POINTWISE, kernel=(1, 7), padding=(0, 3, 0, 3))
    kernel = _kernel(taps, "cortex-a76", "float16")
    for _, loop in kernel.loops(Code(kernel.assembly())):
        assert {one.name for one in loop.body if one.is_mac} == {"fmla"}
        assert loop.spills == 0
        assert not [one for one in loop.body if one.name == "fadd"]
