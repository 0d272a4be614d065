"""Kernels of vision operators (ICPP'19 §3.1.1)."""
