"""Fixtures of the sorts and scans."""

from tests.schedules.vision.harness import device

__all__ = ["device"]
