"""MkDocs hooks: pages that stand elsewhere in the repository join the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
# A Markdown link to what is no page of the results; its text is kept. Pictures begin with "!".
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|results/|papers\.md)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the pictures of the results, and CONTRIBUTING.md."""
    pages = {
        "results.md": BENCHMARKS / "RESULTS.md",
        "extend/contributing.md": ROOT / "CONTRIBUTING.md",
    }
    for path in sorted((BENCHMARKS / "results").rglob("*")):
        name = path.relative_to(BENCHMARKS).as_posix()
        if path.suffix == ".md":
            pages[name] = path
        elif path.suffix in (".png", ".svg"):
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for page, source in pages.items():
        text = _LINK.sub(r"\1", source.read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files
