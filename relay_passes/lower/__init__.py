"""Operators become calls of kernels."""
