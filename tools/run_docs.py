"""Run what the documentation shows, and compare what it prints.

    python tools/run_docs.py [docs/quick-start.md …]

The Python and console blocks of a page run in their order, in one process and one folder. A block
of text after one in Python is what that prints; in a console block the lines under a command are.
Numbers, widths of columns and the CPU's name may differ: they are the machine's. Errors may not:
the lines that begin with ``error:``, and what a block prints that catches one, are compared as they
are. The same lines may also be the beginning of what is printed. Text that is titled as measured is
not compared. Blocks of shell (``sh``) install, or need a board or the reader's files: they are not
run, and each page's line says how many.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Between marks, not behind one: a formatter of Python leaves that alone.
_SNIPPET = re.compile(r"^--8<--\n(.+)\n--8<--$", re.MULTILINE)
_NUMBER, _CPU = re.compile(r"\d+(\.\d+)?"), re.compile(r"\bllvm \([^)]*\)")
_CAUGHT = re.compile(r"^\s*except tvm_edge\.", re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block, with the files that it includes."""

    def included(match: re.Match[str]) -> str:
        return (ROOT / match[1]).read_text(encoding="utf-8")

    text = page.read_text(encoding="utf-8")
    found = _FENCE.finditer(text)
    return [("" if "measured" in m[2] else m[1], _SNIPPET.sub(included, m[3])) for m in found]


def refusals(page: Path) -> list[tuple[str, str]]:
    """Blocks in Python that catch an error of tvm-edge, with the text that they are said to print.

    Text that is titled as measured is left out.
    """
    found = blocks(page)
    return [
        (text, found[at + 1][1])
        for at, (language, text) in enumerate(found[:-1])
        if language == "python" and _CAUGHT.search(text) and found[at + 1][0] == "text"
    ]


def run_page(page: Path) -> Iterator[str]:
    """Yield what a page shows and a run does not print."""
    # Commands of the environment of this Python, whether it is activated or not: also those that
    # blocks in Python call.
    folder = str(Path(sys.executable).parent)
    if folder not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join((folder, os.environ["PATH"]))
    names: dict[str, object] = {"__name__": "docs", "__file__": str(page)}
    found = blocks(page)
    for at, (language, text) in enumerate(found):
        if language == "python":
            printed = run_python(text, names)
            if at + 1 < len(found) and found[at + 1][0] == "text":
                yield from compare(text, found[at + 1][1], printed)
            elif "Traceback" in printed:
                yield f"{text.strip()[-300:]}\n--- printed\n{printed}"
        elif language == "console":
            for command, expected in commands(text):
                yield from compare(command, expected, _shell(command))


def summary(page: Path) -> str:
    """Return how many blocks of a page are run and how many are not."""
    languages = [language for language, _ in blocks(page)]
    run = languages.count("python") + languages.count("console")
    return f"{run} blocks run, {languages.count('sh')} of shell not run"


def run_python(text: str, names: dict[str, object]) -> str:
    """Return what a block prints; the traceback if it does not catch an error."""
    out = io.StringIO()
    with redirect_stdout(out):
        try:
            exec(compile(text, "<block>", "exec"), names)
        except Exception:
            out.write(traceback.format_exc())
    return out.getvalue()


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands of a console block, with what it has under each."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def _shell(command: str) -> str:
    done = subprocess.run(
        command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout


def compare(source: str, expected: str, printed: str) -> Iterator[str]:
    """Yield what differs between what a page has and what its block printed."""
    exact = bool(_CAUGHT.search(source))
    shown, there = _lines(expected, exact), _lines(printed, exact)
    if there[: len(shown)] != shown:
        yield f"{source.strip()[-300:]}\n--- the page has\n{expected}--- printed\n{printed}"


def _lines(text: str, exact: bool) -> list[str]:
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    return [line if exact or line.startswith("error:") else _any_machines(line) for line in lines]


def _any_machines(line: str) -> str:
    return _NUMBER.sub("0", _CPU.sub("llvm (CPU)", line))


def main() -> None:
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = [Path(p).resolve() for p in sys.argv[1:]] or every
    wrong = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("examples").symlink_to(ROOT / "examples")
            for difference in run_page(page):
                wrong += 1
                print(f"{page.relative_to(ROOT)}: {difference}")
        print(f"{page.relative_to(ROOT)}: {summary(page)}", flush=True)
    sys.exit(f"{wrong} blocks print something else" if wrong else 0)


if __name__ == "__main__":
    main()
