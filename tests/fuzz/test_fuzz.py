"""Damaged files end in an error of ours: no crash, no hang, no foreign exception.

A few seconds of what ``python -m tests.fuzz.campaign`` does for as long as one likes.
"""

from __future__ import annotations

import json

import pytest

from tests.fuzz.artifacts import random_edits
from tests.fuzz.campaign import Fuzzer
from tests.fuzz.graphs import random_file
from tests.fuzz.programs import random_pack
from tests.marks import in_full


@pytest.mark.parametrize(
    ("kind", "count", "source"),
    [
        ("model", 30, "graphs"),
        ("artifact", 30, ""),
        ("programs", 100, ""),
        *in_full(("model", 100, "graphs"), ("model", 50, "exported"), ("artifact", 100, "")),
    ],
)
def test_damaged_files(kind: str, count: int, source: str) -> None:
    """Seeded files; some load, and most are noticed."""
    with Fuzzer(kind, corpus=None) as fuzzer:
        if kind == "artifact":
            manifest = fuzzer.manifest()
        for seed in range(count):
            if kind == "artifact":
                content = json.dumps(random_edits(seed, manifest)).encode()
            else:
                content = random_pack(seed) if kind == "programs" else random_file(seed, [source])
            fuzzer.take(content, seed)
    assert not fuzzer.findings, fuzzer.findings
    assert fuzzer.counts["ok"] > count / 20
    assert count - fuzzer.counts["ok"] > count / 5
