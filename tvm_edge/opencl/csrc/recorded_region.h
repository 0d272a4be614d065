// Static regions of a model in TVM's virtual machine: recorded when first run, replayed afterwards.
#ifndef TVM_EDGE_OPENCL_RECORDED_REGION_H_
#define TVM_EDGE_OPENCL_RECORDED_REGION_H_

#include <tvm/ffi/function.h>

namespace tvm_edge::opencl {

/*!
 * \brief Run a region: what vm.builtin.cuda_graph.run_or_capture is for CUDA.
 *
 * Called with the virtual machine, the region's function, its arguments as a tuple, its number in the
 * model and, if it has any, the lengths that its launches depend on: each are recorded for themselves,
 * so the caller bounds how many a virtual machine sees. The arguments' memory is the same in every run, as relax.transform.RewriteCUDAGraph
 * makes sure; where it is not, or the driver does not record, or commands are being timed, the
 * region is launched kernel by kernel.
 */
void RunOrCapture(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);

/*!
 * \brief The storage of all regions, allocated once for each virtual machine.
 *
 * Called with the virtual machine, the function that allocates and the number of the allocation.
 */
void GetCachedAlloc(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_RECORDED_REGION_H_
