// Memory that somebody else has, as tensors of a device: of the host, buffers, dma-bufs.
#ifndef TVM_EDGE_OPENCL_FOREIGN_MEMORY_H_
#define TVM_EDGE_OPENCL_FOREIGN_MEMORY_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/optional.h>

#include <cstdint>

namespace tvm_edge::opencl {

/*!
 * \brief An OpenCL tensor over the memory of a CPU one, for kernels to read; it keeps it alive.
 *
 * Nothing where only a copy will do.
 */
tvm::ffi::Optional<tvm::ffi::Tensor> Borrow(const tvm::ffi::Tensor& tensor, int index);

/*!
 * \brief Bytes of the host for kernels to read and write; whoever has them frees them later.
 *
 * Throws ValueError for memory that does not begin on 64 bytes, NotImplementedError for a device
 * that is not the CPU: its driver would copy.
 */
tvm::ffi::Tensor ImportHostMemory(int index, void* address, int64_t nbytes);

/*! \brief A cl_mem of the device's context, which is retained. Throws ValueError for another. */
tvm::ffi::Tensor ImportBuffer(int index, void* buffer, int64_t nbytes);

/*!
 * \brief A dma-buf of Linux, by cl_arm_import_memory or cl_khr_external_memory_dma_buf.
 *
 * Throws NotImplementedError where the driver has neither. By the second it is acquired here and
 * released with the tensor.
 */
tvm::ffi::Tensor ImportDmaBuf(int index, int64_t fd, int64_t nbytes);

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_FOREIGN_MEMORY_H_
