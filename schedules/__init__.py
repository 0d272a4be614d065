"""Kernels and their config spaces: one family per file, by kind of device."""
