"""C++ that runs models; it knows no Python, and works on TVM's runtime tier."""

from tvm_edge.native.functions import native_errors, native_function, with_details
from tvm_edge.native.pool import kernels_on_pool, pool_counts, use_pool

__all__ = [
    "kernels_on_pool",
    "native_errors",
    "native_function",
    "pool_counts",
    "use_pool",
    "with_details",
]
