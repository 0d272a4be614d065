// The worker pool under kernels that TVM compiled.
#pragma once

namespace tvm_edge {

/*! \brief Add the functions of tvm_edge/native/pool.py to TVM's registry. */
void RegisterPool();

}  // namespace tvm_edge
