"""MkDocs hooks: pages that stand elsewhere in the repository join the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"results.md": "benchmarks/RESULTS.md", "extend/contributing.md": "CONTRIBUTING.md"}
# A Markdown link to a file, of which the text is kept; pictures begin with "!".
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and the pictures of the results."""
    for page, source in PAGES.items():
        text = _LINK.sub(r"\1", (ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    for picture in sorted((ROOT / "benchmarks/results").rglob("*.png")):
        name = picture.relative_to(ROOT / "benchmarks").as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files
