"""Independent kernels in one launch (EMDL'21)."""
