"""Names of devices as their keys have them."""

from __future__ import annotations

import re

__all__ = ["slug"]


def slug(text: str, vendor: str = "") -> str:
    """Return lower-case words joined by hyphens, without trade marks and a leading vendor."""
    plain = re.sub(r"\((?:r|tm|c)\)", " ", text.lower())
    words = re.findall(r"[a-z0-9.]+", plain)
    if len(words) > 1 and words[0] == vendor:
        words = words[1:]
    return "-".join(words) or "unknown"
