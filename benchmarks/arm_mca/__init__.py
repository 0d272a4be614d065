"""Kernels for Arm CPUs, counted in cycles without a board."""
