"""C++ that runs models on CPUs; it knows no Python, and works on TVM's runtime tier."""

from tvm_edge.native.pool import kernels_on_pool, pool_counts, use_pool

__all__ = ["kernels_on_pool", "pool_counts", "use_pool"]
