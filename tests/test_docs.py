"""What the documentation names is there: files, names, options, networks; its Python is Python.

``tools/run_docs.py`` runs the blocks, which takes minutes.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from functools import cache
from pathlib import Path

import click
import pytest

from tvm_edge import zoo
from tvm_edge.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

_CODE = re.compile(r"`([^`\n]+)`")
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(
    r"(?:tvm_edge|relay_passes|schedules|tests|benchmarks|examples|docs|tools|tuning_logs)/[\w./-]*"
)
_NAME = re.compile(r"\btvm_edge(?:\.[A-Za-z]\w*)+")
_ZOO = re.compile(r"\bzoo:([a-z]\w*)")
_ENVIRONMENT = re.compile(r"\bTVM_EDGE_\w+")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def untrue(text: str) -> list[str]:
    """What a page says and the repository does not bear out."""
    blocks = _BLOCK.findall(text)
    spans = _CODE.findall(_BLOCK.sub("", text))
    commands = [line[2:] for _, block in blocks for line in block.splitlines() if line[:2] == "$ "]
    wrong = [f"file {span}" for span in spans if _FILE.fullmatch(span) and not _is_file(span)]
    wrong += [f"name {name}" for name in set(_NAME.findall(text)) if not _is_name(name)]
    known = {*zoo.names(), *zoo.quantized_names(), *zoo.trained_names()}
    wrong += [f"network {name}" for name in set(_ZOO.findall(text)) - known]
    wrong += [f"variable {name}" for name in set(_ENVIRONMENT.findall(text)) - _variables()]
    for line in (*spans, *commands):
        wrong += [f"option {option} in {line}" for option in _unknown_options(line)]
    for language, block in blocks:
        if language == "python" and not _parses(block):
            wrong.append(f"Python: {block[:60]}")
    return wrong


def _is_file(path: str) -> bool:
    return (ROOT / path).exists()


@cache
def _is_name(name: str) -> bool:
    # A module may be hidden by a function of its name, as tvm_edge.hardware.devices is.
    module, _, last = name.rpartition(".")
    if hasattr(sys.modules.get(module), last):
        return True
    found, *rest = name.split(".")
    value = importlib.import_module(found)
    for part in rest:
        found += f".{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(found)
            except ImportError:
                return False
    return True


@cache
def _variables() -> set[str]:
    sources = [p for s in ("*.py", "csrc/*.cc", "csrc/*.h") for p in (ROOT / "tvm_edge").rglob(s)]
    return {v for p in sources for v in _ENVIRONMENT.findall(p.read_text(encoding="utf-8"))}


@cache
def _options() -> dict[str, set[str]]:
    """By command the options it takes; those of ``tvm-edge`` itself under an empty name."""
    context = click.Context(cli)
    commands = {
        "": cli,
        **{name: cli.get_command(context, name) for name in cli.list_commands(context)},
    }
    return {
        name: {option for parameter in command.params for option in parameter.opts} | {"--help"}
        for name, command in commands.items()
        if command is not None
    }


def _unknown_options(line: str) -> list[str]:
    """Options of a command line of ours, or alone in code, that no command has."""
    words = line.split()
    if line.startswith("--"):
        known = set().union(*_options().values())
    elif "tvm-edge" in words:
        words = words[words.index("tvm-edge") + 1 :]
        command = next((word for word in words if word in _options()), "")
        known = _options()[command] | _options()[""]
    else:
        return []
    return [option for option in _OPTION.findall(line) if option not in known]


def _parses(code: str) -> bool:
    if code.startswith('--8<-- "'):  # a file that MkDocs includes, which it checks
        return True
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert untrue(page.read_text(encoding="utf-8")) == []


def test_what_is_not_there_is_found() -> None:
    page = (
        "`schedules/none.py` tvm_edge.none() zoo:none TVM_EDGE_NONE `--none`\n"
        "```console\n$ tvm-edge run model.tvme --repeat 3\n```\n```python\nx = (\n```\n"
    )
    assert [entry.split()[0] for entry in untrue(page)] == [
        "file", "name", "network", "variable", "option", "option", "Python:"
    ]  # fmt: skip


def test_every_pass_has_a_word_in_the_documentation() -> None:
    text = (ROOT / "docs/how/passes.md").read_text(encoding="utf-8")
    files = {path.stem for path in (ROOT / "relay_passes").glob("*.py")} - {"__init__"}
    assert files - set(_CODE.findall(text)) == set()
