"""The generated part of ``RESULTS.md`` about kernels for Arm."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.arm_mca.table import missed_lines, table_lines
from benchmarks.common.paths import RESULTS

__all__ = ["RESULT", "part"]

RESULT = RESULTS / "arm_mca.json"
"""What ``python -m benchmarks run arm_mca --json`` wrote."""


def part() -> str:
    """Return the table of :data:`RESULT`, and the kernels that miss a bar."""
    content: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    rows = content["rows"]
    return "\n".join(
        [
            "## Kernels for Arm: `python -m benchmarks run arm_mca`",
            "",
            f"No board: {len(content['convolutions'])} distinct convolutions of the zoo, compiled "
            f"for each core; loops counted by {content['llvm_mca']} (its A55, its Neoverse N1 for "
            "A76) and by the limits of Arm's guides, of which the slower count stands. Bars: 90 % "
            "of the issue limit in float32, 85 % in int8 (SDOT).",
            "",
            *table_lines(rows),
            "",
            "Kernels that miss it, less the A55's:",
            "",
            *(f"- {line}" for line in missed_lines(rows) if "cortex-a55" not in line),
        ]
    )
