"""The one entry of the benchmarks: what it lists, and what it runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks.__main__ import benchmarks as entry
from benchmarks.catalogue import BENCHMARKS

_FOLDER = Path(benchmarks.__file__).parent


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_takes(name: str) -> None:
    done = CliRunner().invoke(entry, ["run", name, "--help"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"usage: python -m benchmarks run {name} ")
    assert BENCHMARKS[name].about in " ".join(done.output.replace("``", "`").split())


def test_the_list_has_a_line_for_each() -> None:
    lines = CliRunner().invoke(entry, ["list"]).output.splitlines()
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert list(listed) == list(BENCHMARKS)
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.about and benchmark.about in listed[name]
        assert listed[name].endswith(f"[{benchmark.needs}]" if benchmark.needs else benchmark.about)
    assert [line for line in lines if line not in listed.values()] == list(
        dict.fromkeys(benchmark.topic for benchmark in BENCHMARKS.values())
    )


def test_no_benchmark_is_left_out() -> None:
    """Modules with a function ``main`` are in the catalogue, and none runs by itself."""
    found = set()
    for path in _FOLDER.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        name = ".".join(path.relative_to(_FOLDER.parent).with_suffix("").parts)
        if any(node.name == "main" for node in functions):
            found.add(name)
        runs = re.search(r"__name__ == .__main__.", text) is not None
        assert runs == (name in ("benchmarks.__main__", "benchmarks.common.child")), name
    assert found - {"benchmarks.common.child"} == {each.module for each in BENCHMARKS.values()}


def test_a_name_that_is_none_is_a_usage_error() -> None:
    done = CliRunner().invoke(entry, ["run", "nosuch"])
    assert done.exit_code == 2 and "'nosuch' is not one of 'cpu', 'cpu_kernels'" in done.output


def test_data_and_pictures_are_among_the_results() -> None:
    found = [path for path in _FOLDER.rglob("*") if path.suffix in (".json", ".gz", ".png")]
    assert {path.relative_to(_FOLDER).parts[0] for path in found} == {"results"}
