"""Loops of assembly, their cycles by the guides' limits, and the page of the results."""

from __future__ import annotations

import pytest

from benchmarks.arm_mca.assembly import Code, Instruction
from benchmarks.arm_mca.cores import CORES
from benchmarks.arm_mca.table import tables
from benchmarks.common.paths import RESULTS
from benchmarks.pages.sections import listed

_IN_ORDER = ("cortex-a53", "cortex-a55")
_LOOP = """
kernel:
\tmov\tx2, #0
.LBB0_1:
\tldr\tq{0}, [x0], #16
{1}
\tsubs\tx2, x2, #1
\tb.ne\t.LBB0_1
\tstr\tq3, [sp, #16]
\tret
"""


def _code(macs: int, *more: str) -> Code:
    added = [f"\tfmla\tv{i}.4s, v30.4s, v31.s[{i % 4}]" for i in range(macs)]
    return Code(_LOOP.format(31, "\n".join([*more, *added])))


def test_loops_of_assembly() -> None:
    code = _code(8, "\tldp\tq28, q29, [sp, #32]")
    (loop,) = code.inner
    assert (loop.macs, loop.accumulators, loop.spills) == (8, 8, 1)
    assert loop.is_product and len(loop.body) == 8 + 4
    assert code.instructions[-2].spills


def test_registers_of_instructions() -> None:
    one = Instruction("fmla\tv24.4s, v8.4s, v27.s[0]")
    assert one.written == ["v24"] and set(one.read) == {"v24", "v8", "v27"} and one.bits == 128
    assert Instruction("ldp\tq1, q2, [x20, #-128]").written == ["v1", "v2"]
    insert = Instruction("mov\tv27.d[1], x6")
    assert insert.written == ["v27"] and set(insert.read) == {"v27", "x6"}
    assert Instruction("ldr\td27, [x5]").bits == 64


@pytest.mark.parametrize(
    ("core", "macs", "cycles"),
    [
        ("cortex-a76", 16, 8),  # two multiply-adds a cycle
        ("cortex-a76", 2, 2),  # the next addition to an accumulator is two cycles later
        ("cortex-a72", 16, 16),
        ("cortex-a72", 2, 3),
    ],
)
def test_cycles_of_cores_out_of_order(core: str, macs: int, cycles: float) -> None:
    (loop,) = _code(macs).inner
    assert CORES[core].by_guide(loop) == cycles


@pytest.mark.parametrize(
    ("core", "cycles", "most"),
    [
        ("cortex-a72", 16, 8),  # multiplications in one pipe, additions in the other
        ("cortex-a53", 24, 16 / 3),
    ],
)
def test_products_added_up_in_16_bits(core: str, cycles: float, most: float) -> None:
    """Three instructions are one multiply-add of 16 numbers, with the limit of the core for it."""
    multiplied = [
        f"\t{name}\tv{16 + i}.8h, v{first}.8b, v{first + 1}.8b"
        for name, first in (("smull", 24), ("smlal", 26))
        for i in range(8)
    ]
    added = [f"\tsadalp\tv{i}.4s, v{16 + i}.8h" for i in range(8)]
    (loop,) = Code(_LOOP.format(31, "\n".join(multiplied + added))).inner
    assert (loop.macs, loop.accumulators, loop.is_product) == (8, 8, True)
    assert CORES[core].limit(loop) == cycles
    assert cycles <= CORES[core].by_guide(loop) <= cycles + 3
    assert CORES[core].most("int8") == most and CORES[core].most("float32") == 4


def test_a_load_of_128_bits_holds_the_a55_up() -> None:
    (loop,) = _code(16).inner
    (halves,) = _code(16, "\tldr\td29, [x1]", "\tldr\tx5, [x1, #8]", "\tmov\tv29.d[1], x5").inner
    whole, more = (CORES["cortex-a55"].by_guide(one) for one in (loop, halves))
    assert whole >= 18
    assert more - whole <= 2  # they start beside multiply-adds


def test_no_multiply_add_starts_beside_half_a_load_of_the_a53() -> None:
    macs = [f"\tfmla\tv{i}.4s, v30.4s, v31.s[0]" for i in range(16)]
    loads = [f"\tldr\td{i}, [x1, #{8 * i}]" for i in (27, 28, 29)]
    between = [line for pair in zip(macs[8:11], loads, strict=True) for line in pair]
    (plain,) = _code(0, *macs).inner
    (more,) = _code(0, *macs[:8], *between, *macs[11:]).inner
    added = {core: CORES[core].by_guide(more) - CORES[core].by_guide(plain) for core in _IN_ORDER}
    assert added == {"cortex-a53": 3, "cortex-a55": 0}


def test_the_section_has_the_tables_of_the_results() -> None:
    rows = listed(RESULTS / "arm_mca.json")["rows"]
    shown = listed(RESULTS / "sections" / "cpu" / "arm.json")["blocks"]
    for made in tables(rows):
        assert {"columns": list(made.headers), "rows": made.rows} in shown
