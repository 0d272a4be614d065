// A device's tensors as kernels on the CPU read and write them: mapped, shared or copied.
#ifndef TVM_EDGE_OPENCL_HOST_ACCESS_H_
#define TVM_EDGE_OPENCL_HOST_ACCESS_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/object.h>

namespace tvm_edge::opencl {

/*!
 * \brief What an OpenCL tensor holds, for a CPU kernel to read; waits for the device.
 *
 * The same memory where the host can read it there, else a copy. Kernels may go on reading the
 * tensor, and must not write it while the result lives.
 */
tvm::ffi::Tensor ReadOnHost(const tvm::ffi::Tensor& tensor);
/*!
 * \brief Where a CPU kernel writes what an OpenCL tensor is to hold; waits for the device.
 *
 * The same memory where the host can write it at any time, else memory of its own. The device has
 * the values after `HandOver`; the host may go on reading them.
 */
tvm::ffi::Tensor WriteOnHost(const tvm::ffi::Tensor& tensor);
/*! \brief Let `tensor` hold what was written: nothing is done where it does already. */
void HandOver(const tvm::ffi::Tensor& written, const tvm::ffi::Tensor& tensor);

/*!
 * \brief The beginning of `ReadOnHost`: marks where the device has the tensor, and waits for nothing.
 *
 * Tensors of other devices of TVM's, CUDA's among them, are copied on a stream of their own.
 * \return What `FinishRead` takes, which may be given up; it keeps the tensor alive.
 */
tvm::ffi::ObjectRef StartRead(const tvm::ffi::Tensor& tensor);
/*! \brief What the tensor held at `StartRead`; waits for that, and for nothing enqueued since. */
tvm::ffi::Tensor FinishRead(const tvm::ffi::ObjectRef& started);

/*! \brief The beginning of `WriteOnHost`: no kernel enqueued after it uses the tensor's memory. */
tvm::ffi::ObjectRef StartWrite(const tvm::ffi::Tensor& tensor);
/*! \brief As `WriteOnHost`; waits for what was enqueued before `StartWrite` alone. */
tvm::ffi::Tensor FinishWrite(const tvm::ffi::ObjectRef& started);

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_HOST_ACCESS_H_
