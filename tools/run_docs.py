"""Run what the documentation shows, and compare what it prints.

    python tools/run_docs.py [docs/quick-start.md …]

The Python and console blocks of a page run in their order, in one process and one folder. A block
of text behind one in Python is what that prints; in a console block the lines under a command are.
Numbers and the widths of columns may differ: they are measured, and the machine's. The same lines
may also be the beginning of what is printed. Blocks of shell (``sh``) are not run, and text that is
titled as measured is not compared.
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

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SNIPPET = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block, with the files that it includes."""

    def included(match: re.Match[str]) -> str:
        return (ROOT / match[1]).read_text(encoding="utf-8")

    text = page.read_text(encoding="utf-8")
    found = _FENCE.finditer(text)
    return [("" if "measured" in m[2] else m[1], _SNIPPET.sub(included, m[3])) for m in found]


def run_page(page: Path) -> Iterator[str]:
    """What a page shows and a run does not print."""
    names: dict[str, object] = {"__name__": "docs", "__file__": str(page)}
    found = blocks(page)
    for at, (language, text) in enumerate(found):
        if language == "python":
            printed = _python(text, names)
            if at + 1 < len(found) and found[at + 1][0] == "text":
                yield from _compare(text, found[at + 1][1], printed)
        elif language == "console":
            for command, expected in _commands(text):
                yield from _compare(command, expected, _shell(command))


def _python(text: str, names: dict[str, object]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        try:
            exec(compile(text, "<block>", "exec"), names)
        except Exception:
            out.write(traceback.format_exc())
    return out.getvalue()


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def _shell(command: str) -> str:
    done = subprocess.run(
        command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout


def _compare(source: str, expected: str, printed: str) -> Iterator[str]:
    shown, there = _lines(expected), _lines(printed)
    if there[: len(shown)] != shown:
        yield f"{source.strip()[-300:]}\n--- the page has\n{expected}--- printed\n{printed}"


def _lines(text: str) -> list[str]:
    text = re.sub(r"\d+(\.\d+)?", "0", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def main() -> None:
    pages = [Path(p).resolve() for p in sys.argv[1:]] or sorted((ROOT / "docs").rglob("*.md"))
    wrong = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("examples").symlink_to(ROOT / "examples")
            for difference in run_page(page):
                wrong += 1
                print(f"{page.relative_to(ROOT)}: {difference}")
        print(f"{page.relative_to(ROOT)}: run", flush=True)
    sys.exit(f"{wrong} blocks print something else" if wrong else 0)


if __name__ == "__main__":
    main()
