"""Lines of code of each vision operator: ``python -m benchmarks.lines_of_code``.

Lines that are not blank, not a comment and not of a docstring, as ICPP'19 counts its schedules.
OpenCL and CUDA share a schedule. A file belongs to one operator by its name; what several
operators use is ``shared``. Top-k on a GPU is part of the sort.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

__all__ = ["lines_markdown", "operator_lines"]

_FOLDER = Path(__file__).parents[1] / "schedules" / "vision"
_NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)
_OPERATORS = {
    "anchors": "decoding",
    "box_nms": "NMS",
    "boxes": "NMS",
    "decode": "decoding",
    "efficient_nms": "NMS",
    "grid_sample": "resampling",
    "keys": "sort",
    "merge": "sort",
    "nms": "NMS",
    "nonzero": "NonZero",
    "operators": "scan",
    "proposal": "NMS",
    "radix": "sort",
    "resize": "resampling",
    "resize_taps": "resampling",
    "roi": "ROI",
    "roi_bins": "ROI",
    "roi_channels": "ROI",
    "roi_operation": "ROI",
    "scan": "scan",
    "scatter": "scatter",
    "segments": "sort",
    "select": "top-k",
    "soft_nms": "NMS",
    "sort": "sort",
    "unique": "unique",
}
_ORDER = (
    "sort",
    "top-k",
    "scan",
    "unique",
    "NMS",
    "decoding",
    "ROI",
    "resampling",
    "NonZero",
    "scatter",
    "shared",
)


def _count_lines(source: str) -> int:
    """Lines of Python that are not blank, a comment or a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def operator_lines() -> dict[str, dict[str, int]]:
    """Operator → file in ``schedules/vision`` → lines of code."""
    found: dict[str, dict[str, int]] = {operator: {} for operator in _ORDER}
    for path in sorted(_FOLDER.rglob("*.py")):
        if path.name == "__init__.py":  # names alone
            continue
        stem = next((s for s in (path.stem, path.stem.split("_")[0]) if s in _OPERATORS), "")
        name = path.relative_to(_FOLDER).as_posix()
        found[_OPERATORS.get(stem, "shared")][name] = _count_lines(path.read_text("utf-8"))
    return found


def lines_markdown() -> str:
    """A line for each operator."""
    titles = "| operator | cpu/ | gpu/: OpenCL and CUDA | other files | of which |"
    lines = [titles, "|---|---|---|---|---|"]
    for operator, files in operator_lines().items():
        parts = {"cpu": 0, "gpu": 0, "": 0}
        for name, count in files.items():
            folder = name.split("/")[0]
            parts[folder if folder in parts else ""] += count
        names = ", ".join(f"{name} {count}" for name, count in files.items())
        lines.append(
            f"| {operator} | {parts['cpu']} | {parts['gpu']} | {parts['']} | {names or '–'} |"
        )
    return "\n".join(lines)


def main() -> None:
    print(lines_markdown())


if __name__ == "__main__":
    main()
