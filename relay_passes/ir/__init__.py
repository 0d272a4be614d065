"""Helpers that read and build Relax."""
