"""The whole corpus: importing this enters the generators of all families."""

from __future__ import annotations

from tests.models import (
    classifiers,
    dense_prediction,
    generative,
    motion,
    paddle,
    speech,
    tensorflow,
    torchvision_detectors,
    transformers,
    yolo,
)
from tests.models.registry import GENERATORS

__all__ = ["FAMILIES", "GENERATORS"]

FAMILIES = (
    classifiers,
    dense_prediction,
    generative,
    motion,
    paddle,
    speech,
    tensorflow,
    torchvision_detectors,
    transformers,
    yolo,
)
"""Modules, one for each kind of network or exporter."""
