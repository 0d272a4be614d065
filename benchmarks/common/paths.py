"""Places of the repository that benchmarks read and write."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PAGE", "RESULTS", "ROOT"]

ROOT = Path(__file__).parents[2]
"""The checkout."""
PAGE = ROOT / "benchmarks" / "RESULTS.md"
"""The short page of all figures."""
RESULTS = ROOT / "benchmarks" / "results"
"""Data and pictures, a folder a topic."""
