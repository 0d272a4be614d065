"""C++ that runs models on CPUs; it knows no Python, and works on TVM's runtime tier."""

from tvm_edge.native.pool import expect_launches, kernels_on_pool, pool_counts, use_pool

__all__ = ["expect_launches", "kernels_on_pool", "pool_counts", "use_pool"]
