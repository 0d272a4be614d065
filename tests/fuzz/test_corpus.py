"""What once crashed, hung or raised a foreign exception ends in success or an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import CORPUS, Fuzzer


@pytest.mark.parametrize("kind", ["model", "artifact", "programs"])
def test_corpus(kind: str) -> None:
    """Every file of ``corpus/KIND``; the ``.txt`` beside it says what it did once."""
    failed = {}
    with Fuzzer(kind, corpus=None) as fuzzer:
        for path in sorted((CORPUS / kind).glob("*.bin")):
            outcome = fuzzer.feed(path.read_bytes())
            if outcome.finding:
                failed[path.name] = outcome.key
    assert not failed


def test_corpus_files_are_small_and_explained() -> None:
    files = [path for path in CORPUS.rglob("*.bin") if path.is_file()]
    assert files
    for path in files:
        assert path.stat().st_size < 50_000
        assert Path(path.with_suffix(".txt")).read_text().strip()
