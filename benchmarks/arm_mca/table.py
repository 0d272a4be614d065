"""Cycles of dense convolutions on Arm cores beside the issue limit of their multiply-adds.

Nothing runs: kernels of the zoo's convolutions are compiled for each core, and llvm-mca and the
limits of Arm's optimisation guides count their inner loops (:mod:`benchmarks.arm_mca.cores`). The
slower count stands. Convolutions with the same tile, window and strides have the same loops: one of
each is compiled. ``held`` is the share of a kernel's multiply-adds that the loops hold. The part of
the limit is a mean over whole and incomplete tiles by their work. Instructions for a multiply-add
are those of the kernel: reduction, epilogue, copies for padding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.arm_mca.assembly import Code
from benchmarks.arm_mca.cores import CORES, find_mca
from benchmarks.arm_mca.kernels import Kernel, dense_kernel
from benchmarks.arm_mca.zoo_convolutions import zoo_convolutions
from benchmarks.common.options import Parser
from benchmarks.pages.sections import put_table
from benchmarks.papers.exhibits import Table
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["measure", "missed", "table", "tables"]

BARS = {"float32": 0.90, "float16": 0.85, "int8": 0.85}
"""Least part of the issue limit."""

_HELD = 0.90
_SECTION = "cpu/arm"
_TABLE = (
    "core",
    "type",
    "convolutions",
    "tiles",
    "of the issue limit, worst",
    "mean",
    "reach the bar",
    "spills",
    "held, least",
    "instructions for a multiply-add",
    "multiply-adds a cycle",
)
_MISSED = ("core", "type", "of the issue limit", "held", "convolution", "window", "tile")
_CORES = {
    "float32": ("cortex-a53", "cortex-a55", "cortex-a72", "cortex-a76"),
    "float16": ("cortex-a55", "cortex-a76"),
    "int8": ("cortex-a53", "cortex-a55", "cortex-a72", "cortex-a76", "neoverse-n2"),
}


def measure(kernel: Kernel, core: str, mca: str) -> dict[str, Any]:
    """Compile a kernel and count the cycles of its loops."""
    code = Code(kernel.assembly())
    limit = cycles = held = 0.0
    loops: list[dict[str, Any]] = []
    for share, loop in kernel.loops(code):
        guide, simulated = CORES[core].cycles(loop, mca)
        own = guide if simulated is None else max(guide, simulated)
        held += share
        limit += share * CORES[core].limit(loop) / loop.macs
        cycles += share * own / loop.macs
        loops.append(
            {
                "share": round(share, 3),
                "accumulators": loop.accumulators,
                "macs": loop.macs,
                "instructions": len(loop.body),
                "loads": sum(one.loads for one in loop.body),
                "spills": loop.spills,
                "limit": CORES[core].limit(loop),
                "guide": guide,
                "llvm_mca": simulated,
                "instructions_per_mac": round(kernel.instructions(code, loop), 2),
            }
        )
    return {
        "config": asdict(kernel.config),
        "knobs": asdict(kernel.knobs),
        "loops": loops,
        "held": round(held, 3),
        "most": CORES[core].most(kernel.workload.dtype, matrices=kernel.size.pairs),
        "of_limit": round(limit / cycles, 3) if cycles else 0.0,
        "spills": sum(one["spills"] for one in loops),
        "instructions_per_mac": max((one["instructions_per_mac"] for one in loops), default=0.0),
    }


def _rows(
    convolutions: Mapping[ConvWorkload, str], core: str, dtype: str, mca: str
) -> list[dict[str, Any]]:
    """Return a row for each kind of kernel, of its largest convolution."""
    kinds: dict[Any, list[tuple[Kernel, str]]] = {}
    for workload, network in convolutions.items():
        kernel = dense_kernel(replace(workload, dtype=dtype), core)
        if kernel is not None:
            kinds.setdefault(kernel.key, []).append((kernel, network))
    rows = []
    for own in kinds.values():
        kernel, network = max(own, key=lambda one: one[0].workload.macs)
        row = {"core": core, "network": network, "convolutions": len(own)}
        rows.append({**row, **asdict(kernel.workload), **measure(kernel, core, mca)})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of a row for each core and type."""
    lines: list[list[str]] = []
    for core, dtype in dict.fromkeys((row["core"], row["dtype"]) for row in rows):
        own = [row for row in rows if (row["core"], row["dtype"]) == (core, dtype)]
        count = sum(row["convolutions"] for row in own)
        mean = sum(row["of_limit"] * row["convolutions"] for row in own) / count
        rate = sum(row["of_limit"] * row["most"] * row["convolutions"] for row in own) / count
        met = sum(row["of_limit"] >= BARS[dtype] and row["held"] >= _HELD for row in own)
        per_mac = sorted(row["instructions_per_mac"] for row in own)
        lines.append(
            [
                *(core, dtype, str(count), str(len(own))),
                *(f"{min(row['of_limit'] for row in own):.0%}", f"{mean:.0%}"),
                f"{met} of {len(own)} (>= {BARS[dtype]:.0%})",
                *(str(sum(row["spills"] for row in own)), f"{min(row['held'] for row in own):.0%}"),
                f"{per_mac[len(per_mac) // 2]:.2f} ({per_mac[0]:.2f} to {per_mac[-1]:.2f})",
                f"{rate:.1f}",
            ]
        )
    return lines


def as_lines(content: Mapping[str, Any]) -> str:
    """Return results as JSON with a line for each convolution and each row."""
    parts = []
    for key, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(one) for one in value) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _convolutions(path: Path | None, networks: Sequence[str]) -> dict[ConvWorkload, str]:
    """Return the convolutions of networks, or those that an earlier run left in its file."""
    if path is None:
        return zoo_convolutions(networks)
    found = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["convolutions"]:
        network = row.pop("network")
        lists = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        found[ConvWorkload(**lists)] = network
    return found


def missed(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of a row for each kernel that misses its bar, the worst first."""
    found = [row for row in rows if row["of_limit"] < BARS[row["dtype"]] or row["held"] < _HELD]
    return [
        [
            *(row["core"], row["dtype"], f"{row['of_limit']:.0%}", f"{row['held']:.0%}"),
            f"{row['channels']}x{row['height']}x{row['width']} to {row['filters']}",
            f"{tuple(row['kernel'])} by {tuple(row['strides'])}, {row['config']['algorithm']}",
            f"{row['knobs']['lines']}x{row['knobs']['columns']}x{row['knobs']['blocks']}",
        ]
        for row in sorted(found, key=lambda row: float(row["of_limit"]))
    ]


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the section's tables. Most kernels miss the bars in order: none stands alone there."""
    others = [row for row in rows if not CORES[row["core"]].in_order]
    return [Table(_TABLE, table(rows)), Table(_MISSED, missed(others))]


def main(arguments: Sequence[str]) -> None:
    """Count and print."""
    from tvm_edge import zoo

    parser = Parser("arm_mca", __doc__)
    parser.shared(networks=zoo.names(), json=None)
    parser.add_argument(
        "--cores", nargs="+", choices=list(CORES), help="(default: those of the bars)"
    )
    parser.add_argument("--dtypes", nargs="+", choices=list(_CORES), default=list(_CORES))
    parser.add_argument(
        "--convolutions",
        type=Path,
        help="file of an earlier run: its convolutions, as the zoo's take ten minutes to build",
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="of an earlier run: put its tables into the section",
    )
    options = parser.parse_args(arguments)
    if options.page is not None:
        for made in tables(json.loads(options.page.read_text(encoding="utf-8"))["rows"]):
            put_table(_SECTION, made.headers, made.rows)
        return
    mca = find_mca()
    found = _convolutions(options.convolutions, options.networks)
    rows: list[dict[str, Any]] = []
    for dtype in options.dtypes:
        for core in options.cores or _CORES[dtype]:
            rows += _rows(found, core, dtype, mca)
            content = {
                "llvm_mca": Path(mca).name,
                "convolutions": [{**asdict(w), "network": name} for w, name in found.items()],
                "rows": rows,
            }
            if options.json is not None:
                options.json.write_text(as_lines(content), encoding="utf-8")
    for made in tables(rows):
        print("\n".join(made.lines()), end="\n\n")
