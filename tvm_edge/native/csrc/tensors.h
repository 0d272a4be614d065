// Tensors over memory that something else owns, and tensors of host memory.
#pragma once

#include <tvm/runtime/device_api.h>
#include <tvm/runtime/tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tvm_edge {
namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

constexpr size_t kAlignment = tvm::runtime::kAllocAlignment;
constexpr DLDevice kCpu{kDLCPU, 0};
constexpr DLDataType kBytes{kDLUInt, 8, 1};

inline bool IsAligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % kAlignment == 0;
}

inline bool IsHostMemory(DLDevice device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost ||
         device.device_type == kDLROCMHost;
}

/*! \brief Where the first element of a tensor in host memory is. */
inline char* DataOf(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

inline size_t BytesOf(const DLTensor& tensor) {
  size_t nbytes = (size_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8;
  for (int i = 0; i < tensor.ndim; ++i) nbytes *= static_cast<size_t>(tensor.shape[i]);
  return nbytes;
}
inline size_t BytesOf(const Tensor& tensor) { return BytesOf(*tensor.operator->()); }

/*! \brief A tensor over memory, which `owner` holds. */
Tensor Over(void* data, ffi::ShapeView shape, DLDataType dtype, DLDevice device,
            std::shared_ptr<void> owner);

inline Tensor EmptyBytes(size_t nbytes, DLDevice device = kCpu) {
  return Tensor::Empty(ffi::Shape({static_cast<int64_t>(nbytes)}), kBytes, device);
}

/*! \brief A view of the beginning of a tensor of bytes. */
inline Tensor ViewOf(const Tensor& bytes, ffi::ShapeView shape, DLDataType dtype) {
  return bytes.CreateView(ffi::Shape(shape.begin(), shape.end()), dtype);
}

/*! \brief A copy in host memory that kernels read where it is. */
Tensor HostCopy(const DLTensor& tensor);

inline ffi::ShapeView ShapeOf(const DLTensor& tensor) {
  return ffi::ShapeView(tensor.shape, static_cast<size_t>(tensor.ndim));
}

inline void Synchronize(DLDevice device) {
  tvm::runtime::DeviceAPI::Get(device)->StreamSync(device, nullptr);
}

}  // namespace tvm_edge
