"""Files, names, options and networks of the documentation exist; its Python parses.

What it says of errors is what is raised. ``make test-full`` runs all blocks in Python and of
commands, as ``tools/run_docs.py`` does.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import tvm_edge
from benchmarks.__main__ import benchmarks
from benchmarks.catalogue import BENCHMARKS
from benchmarks.pages.sections import MISSED, NOT_MEASURED, areas, listed
from tests.marks import in_full
from tools import run_docs
from tvm_edge import zoo
from tvm_edge.cli.main import cli, main
from tvm_edge.schedules import cpu
from tvm_edge.workflow import quantize

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs/guide"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]

_CODE = re.compile(r"`([^`\n]+)`")
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(
    r"(?:tvm_edge|relay_passes|schedules|tests|benchmarks|examples|docs|tools|tuning_logs)/[\w./-]*"
)
_NAME = re.compile(r"\btvm_edge(?!\.(?:h|hpp|pc)\b)(?:\.[A-Za-z]\w*)+")  # headers are none
_ZOO = re.compile(r"\bzoo:([a-z]\w*)")
_ENVIRONMENT = re.compile(r"\bTVM_EDGE_\w+")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_MODULE = re.compile(r"-m (benchmarks run \w+|tests\.[\w.]+)")
_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
_INDENTED = re.compile(r"^ {4}((?:tvm-edge|ssh|\S*python3?) .*)$", re.MULTILINE)


def untrue(text: str) -> list[str]:
    """Return the claims of a page that the repository does not bear out."""
    blocks = _BLOCK.findall(text)
    prose = _BLOCK.sub("", text)
    spans = _CODE.findall(prose)
    commands = _INDENTED.findall(prose)
    for language, block in blocks:
        start = {"sh": "", "console": "$ "}.get(language)
        if start is not None:
            commands += [line for line in block.splitlines() if line.startswith(start)]
    wrong = [f"file {span}" for span in spans if _FILE.fullmatch(span) and not _is_file(span)]
    wrong += [f"name {name}" for name in set(_NAME.findall(text)) if not _is_name(name)]
    known = {*zoo.names(), *zoo.quantized_names(), *zoo.trained_names()}
    wrong += [f"network {name}" for name in set(_ZOO.findall(text)) - known]
    wrong += [f"variable {name}" for name in set(_ENVIRONMENT.findall(text)) - _variables()]
    modules = frozenset(_MODULE.findall(text))
    for line in dict.fromkeys((*spans, *commands)):
        wrong += [f"option {option} in {line}" for option in _unknown_options(line, modules)]
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


def _unknown_options(line: str, modules: frozenset[str] = frozenset()) -> list[str]:
    """Options of a command line of ours, or alone in code, that no command has.

    Alone they may be of a module that the page runs.
    """
    line = line.partition(" #")[0]
    words = line.split()
    if line.startswith("--"):
        known = set().union(*_options().values(), *map(_options_of, modules))
    elif module := _MODULE.search(line):
        known = _options_of(module[1])
        line = line[module.end() :]
    elif "tvm-edge" in words:
        words = words[words.index("tvm-edge") + 1 :]
        command = next((word for word in words if word in _options()), "")
        known = _options()[command] | _options()[""]
    else:
        return []
    return [option for option in _OPTION.findall(line) if option not in known]


@cache
def _options_of(module: str) -> set[str]:
    """Options of a benchmark by its help, or of a module of tests by its source."""
    name = module.removeprefix("benchmarks run ")
    if name in BENCHMARKS:
        shown = CliRunner().invoke(benchmarks, ["run", name, "--help"]).output
        return set(_OPTION.findall(shown.partition("\noptions:\n")[2]))
    path = ROOT / f"{module.replace('.', '/')}.py"
    if not path.exists():
        return set()
    return {"--help", *re.findall(r'"(--[a-z][\w-]*)"', path.read_text(encoding="utf-8"))}


# Page → function and command whose options its tables hold, but for those of other commands.
_TABLES: dict[str, tuple[Callable[..., Any] | None, str, tuple[str, ...]]] = {
    "reference/options.md": (tvm_edge.compile, "compile", ()),
    "reference/options.md#run": (None, "run", ()),
    "guide/deploy.md": (tvm_edge.load, "", ()),
    "guide/tuning.md": (tvm_edge.tune, "tune", ()),
    "guide/quantize.md": (quantize, "quantize", ()),
    "guide/compare.md": (None, "compare", ("compile", "run")),
    "guide/boards.md": (tvm_edge.connect, "rpc-server", ()),
    "guide/profiling.md": (None, "bench", ("run",)),
    "guide/profiling.md#kernels": (None, "profile", ("run",)),
}


@pytest.mark.parametrize("page", _TABLES)
def test_tables_have_all_options_with_their_defaults(page: str) -> None:
    """Each argument and each option begins a row, in which its default stands."""
    function, command, others = _TABLES[page]
    text = (ROOT / "docs" / page.partition("#")[0]).read_text(encoding="utf-8")
    expected: dict[str, Any] = {}
    if function is not None:
        arguments = inspect.signature(function).parameters.values()
        expected |= {a.name: a.default for a in arguments if a.kind != a.VAR_KEYWORD}
    if command:
        left_out = {o for other in others for o in _options()[other]} | {"--help", "-h"}
        found = _command(command).params
        expected |= {
            option: parameter.default
            for parameter in found
            if isinstance(parameter, click.Option)
            for option in parameter.opts
            if option not in left_out
        }
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            first = "|".join(line.split("|")[1:3])
            for word in re.findall(r"`(-{0,2}[a-z][\w-]*|-[a-z]\b)", first):
                rows.setdefault(word, []).append(line)
    wrong = [
        f"{name}: {default!r}"
        for name, default in expected.items()
        if not any(_told(default) in row for row in rows.get(name, ()))
    ]
    assert wrong == []


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def _told(default: object) -> str:
    """Return a default as a table writes it; nothing of one that stands for "not given"."""
    if isinstance(default, bool) or not isinstance(default, (str, int, float)):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def _parses(code: str) -> bool:
    if code.startswith("--8<--\n"):  # a file that MkDocs includes, which it checks
        return True
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    # What a formatter makes of an inclusion is an expression, and includes nothing.
    return not code.startswith("--8 ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert untrue(page.read_text(encoding="utf-8")) == []


def test_what_is_not_there_is_found() -> None:
    page = (
        "`schedules/none.py` tvm_edge.none() zoo:none TVM_EDGE_NONE `--none`\n\n"
        "    tvm-edge tune x --none1  # --none2\n\n`python -m benchmarks run vision --none3`\n"
        "```console\n$ tvm-edge run model.tvme --repeat 3\n```\n```python\nx = (\n```\n"
        '```sh\nssh board tvm-edge run --none4\n```\n```python\n--8 < --"x.py"\n```\n'
    )
    assert [entry.split()[0] for entry in untrue(page)] == [
        *("file", "name", "network", "variable"), *["option"] * 5, "Python:", "Python:"
    ]  # fmt: skip


def test_the_layers_are_those_that_are_held() -> None:
    """CONTRIBUTING lists what import-linter enforces, in its order."""
    _, _, contract = (ROOT / "pyproject.toml").read_text().partition("\nlayers = [\n")
    held = re.findall(r'"([^"]*)"', contract.partition("\n]")[0])
    names = [re.sub(r"tvm_edge\.| *[|:] *", " ", line).split() for line in held]
    page = (ROOT / "CONTRIBUTING.md").read_text()
    block = page.partition("(the list in `pyproject.toml`):\n\n")[2].partition("\n\n")[0]
    shown = [
        re.split(r"  {4,}", line.strip())[0].replace("|", " ").split() for line in block.split("\n")
    ]
    private = {"__main__", "_version"}
    assert shown == [kept for line in names if (kept := [n for n in line if n not in private])]


def test_the_map_has_every_folder() -> None:
    """The map of the repository: the packages of tvm_edge, and the folders beside it."""
    _, _, shown = (ROOT / "docs/how/phases.md").read_text().partition("\n## Map\n\n")
    shown = shown.partition("\n\n")[0]
    packages = [path.parent for path in (ROOT / "tvm_edge").glob("*/__init__.py")]
    beside = [ROOT / name for name in ("benchmarks", "docs", "examples", "tests", "tuning_logs")]
    missing = [
        path.name for path in (*packages, *beside) if not re.search(rf"\b{path.name}\b", shown)
    ]
    assert not missing


def test_every_pass_has_a_word_in_the_documentation() -> None:
    text = (ROOT / "docs/how/passes.md").read_text(encoding="utf-8")
    files = {path.stem for path in (ROOT / "relay_passes").rglob("*.py")} - {"__init__"}
    assert files
    assert files - set(_CODE.findall(text)) == set()


@pytest.mark.parametrize("page", TOP, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """MkDocs checks the pages of ``docs/``, and nothing else these."""
    wrong = []
    for link in _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            wrong.append(link)
    assert not wrong


def _anchors(page: Path) -> dict[str, str]:
    """Return the text under each heading of a page, by the anchor that GitHub gives it."""
    parts = re.split(r"^#+ (.+)\n", _BLOCK.sub("", page.read_text(encoding="utf-8")), flags=re.M)
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in parts[1::2]]
    return dict(zip(anchors, parts[2::2], strict=True))


_SHOWN = [
    str(page.relative_to(ROOT))
    for page in PAGES
    if page.name != "CONTRIBUTING.md"
    and any(language in ("python", "console") for language, _ in run_docs.blocks(page))
]
# The others take longer: all of them, minutes.
_QUICK = ("docs/api/zoo.md", "docs/how/schedules.md")


@pytest.mark.parametrize("page", [*_QUICK, *in_full(*(p for p in _SHOWN if p not in _QUICK))])
def test_what_a_page_shows_is_what_is_printed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which the run adds to
    monkeypatch.setattr(cpu, "RULES", cpu.RULES)  # one page adds a rule
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert list(run_docs.run_page(ROOT / page)) == []


def test_blocks_that_are_not_run_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shown = [("python", "print(1)"), ("text", "1"), ("sh", "pip install x"), ("console", "$ true")]
    page.write_text("\n".join(f"```{language}\n{text}\n```\n" for language, text in shown))
    assert run_docs.summary(page) == "2 blocks run, 1 of shell not run"


@pytest.mark.parametrize("page", ["guide/fallback.md", "guide/not-yet.md", "migration.md"])
def test_an_error_that_a_page_quotes_is_the_one_that_is_raised(page: str) -> None:
    """Pages whose errors need nothing of the code blocks before them."""
    quoted = run_docs.refusals(ROOT / "docs" / page)
    assert quoted
    names: dict[str, object] = {"tvm_edge": tvm_edge}
    for code, expected in quoted:
        assert list(run_docs.compare(code, expected, run_docs.run_python(code, names))) == []


def test_commands_fail_as_the_page_of_errors_shows(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [
        each
        for language, text in run_docs.blocks(GUIDES / "errors.md")
        if language == "console"
        for each in run_docs.commands(text)
    ]
    assert len(shown) == 2
    for command, expected in shown:
        line, _, status = command.partition("; ")
        assert status == "echo $?"
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line)[1:])
        captured = capfd.readouterr()
        printed = f"{captured.out}{captured.err} {ended.value.code}"
        # Numbers in the lines of errors count; the status is one as well.
        assert printed.split() == expected.split()


def test_the_sections_of_the_results_name_commands_that_there_are() -> None:
    found = [s for area in areas() for s in area.sections]
    commands = {c for s in found for c in s.commands}
    commands |= {section.command(row) for section in found for row in section.summary}
    commands = {command for command in commands if _MODULE.search(command)}
    assert len(commands) > 20
    assert [(line, wrong) for line in commands if (wrong := _unknown_options(line))] == []
    assert all(_options_of(module) for line in commands for module in _MODULE.findall(line))


@pytest.mark.parametrize(("path", "verdict"), [(MISSED, "missed"), (NOT_MEASURED, "not measured")])
def test_every_bar_of_a_verdict_is_in_its_list(path: Path, verdict: str) -> None:
    found = {s.title: s for area in areas() for s in area.sections}
    rows = [(row["section"], row["bar"]) for row in listed(path)]
    assert {section for section, _ in rows} <= set(found)
    assert len(rows) == len(set(rows)) > 10
    said = {bar for s in found.values() for bar, each in s.bars.items() if each == verdict}
    assert said - {bar for _, bar in rows} == set()


def test_every_bar_without_a_figure_has_a_command() -> None:
    for row in listed(NOT_MEASURED):
        command = row["command"]
        assert command.startswith(("python -m ", "tvm-edge ")) and _unknown_options(command) == []
        if command.startswith("tvm-edge "):
            assert command.split()[1] in _options(), command
        elif module := _MODULE.search(command):
            assert _options_of(module[1]), command
        else:
            assert _is_file(command.split()[-1]), command
