"""The summary in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.reports import made_report
from tvm_edge.report import RecordsInfo


@pytest.mark.parametrize(("given", "shown"), [(1, 1), (3, 3), (4, 4), (100, 4)])
def test_records_of_another_machine_do_not_bury_the_rest(given: int, shown: int) -> None:
    """Of a network that is tuned for AVX-512, a CPU without it ignores every record."""
    ignored = tuple(f"the record {number} is not legal" for number in range(given))
    report = replace(made_report(), records=RecordsInfo(given, 0, 0, ignored))
    lines = [line.strip() for line in report.summary().splitlines() if "ignored" in line]
    assert len(lines) == shown and lines[0] == "ignored: the record 0 is not legal"
    assert ("report.records.ignored" in lines[-1]) == (given > 3)
