"""The lock of what tests, documentation and benchmarks install: a file for each Python."""

from __future__ import annotations

import re
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parents[1] / "requirements"
CLASSIFIERS = metadata("tvm-edge").get_all("Classifier") or []
VERSIONS = [v for c in CLASSIFIERS if (v := c.rpartition(" :: ")[2]).startswith("3.")]


def pins(version: str) -> dict[str, str]:
    """Versions by name, in the lock of a Python; every line is one, or a comment."""
    lines = (FOLDER / f"py{version.replace('.', '')}.txt").read_text().splitlines()
    found = [line for line in lines if not line.startswith("#")]
    assert [line for line in found if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", line)] == []
    return dict(line.split("==") for line in found)


def test_every_python_has_one() -> None:
    assert len(VERSIONS) == 4
    names = {f"py{version.replace('.', '')}.txt" for version in VERSIONS}
    assert {path.name for path in FOLDER.glob("*.txt")} == names


@pytest.mark.parametrize("version", VERSIONS)
def test_it_has_what_the_package_and_its_extras_ask_for(version: str) -> None:
    """If not: make lock."""
    locked = pins(version)
    machine = {"python_version": version, "platform_machine": "x86_64"}
    extras = ["", *(metadata("tvm-edge").get_all("Provides-Extra") or [])]
    checked = 0
    for wanted in map(Requirement, requires("tvm-edge") or []):
        mark = wanted.marker
        used = mark is None or any(mark.evaluate({**machine, "extra": extra}) for extra in extras)
        if wanted.name != "tvm-edge" and used:
            assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), wanted
            checked += 1
    assert checked > 20
