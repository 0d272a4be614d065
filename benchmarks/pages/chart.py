"""Chart of the README: speed-ups as bars with their spreads, as an SVG without a library."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.pages.sections import Row

__all__ = ["chart"]

_LEFT, _WIDTH, _LINE, _TOP = 270, 800, 24, 34  # pixels
_MOST = 7.0  # of the axis; a longer bar ends there with its figure
_COLOUR, _BEHIND = "#00897b", "#c2571a"


def chart(rows: Sequence[Row]) -> str:
    """Return the SVG of the rows that have a label for it, the furthest ahead first."""
    shown = sorted((row for row in rows if row.chart), key=lambda row: -(row.ratio or 0))
    height = _TOP + _LINE * len(shown) + 26
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        '<text x="12" y="20" font-weight="bold">Speed-up over the peer '
        "(geometric mean, least to most)</text>",
    ]
    bottom = _TOP + _LINE * len(shown)
    for tick in range(int(_MOST) + 1):
        x = _x(tick)
        style = 'stroke="#444" stroke-dasharray="4 3"' if tick == 1 else 'stroke="#ddd"'
        lines.append(f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}" {style}/>')
        lines.append(f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{tick}</text>')
    for at, row in enumerate(shown):
        lines += _bar(row, _TOP + _LINE * at)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bar(row: Row, top: int) -> list[str]:
    ratio = row.ratio or 0.0
    middle = top + _LINE // 2
    end = _x(min(ratio, _MOST))
    colour = _COLOUR if ratio >= 1 else _BEHIND
    lines = [
        f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(row.chart)}</text>',
        f'<rect x="{_LEFT}" y="{top + 4}" width="{end - _LEFT}" height="{_LINE - 8}" '
        f'fill="{colour}"/>',
    ]
    right = end
    if row.spread:
        low, high = (_x(min(value, _MOST)) for value in row.spread)
        right = max(end, high)
        lines.append(
            f'<line x1="{low}" y1="{middle}" x2="{high}" y2="{middle}" stroke="#222" '
            'stroke-width="2"/>'
        )
    lines.append(f'<text x="{right + 6}" y="{middle + 4}">{ratio:.2f}</text>')
    return lines


def _x(value: float) -> int:
    return round(_LEFT + value / _MOST * (_WIDTH - _LEFT - 60))
