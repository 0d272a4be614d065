#include "tensors.h"

#include <cstring>
#include <utility>

namespace tvm_edge {
namespace {

/*! \brief Memory as ffi::Tensor wants to be given it. */
class Borrowed {
 public:
  Borrowed(void* data, std::shared_ptr<void> owner) : data_(data), owner_(std::move(owner)) {}
  void AllocData(DLTensor* tensor) { tensor->data = data_; }
  void FreeData(DLTensor*) { owner_.reset(); }

 private:
  void* data_;
  std::shared_ptr<void> owner_;
};

}  // namespace

Tensor Over(void* data, ffi::ShapeView shape, DLDataType dtype, DLDevice device,
            std::shared_ptr<void> owner) {
  return Tensor(
      ffi::Tensor::FromNDAlloc(Borrowed(data, std::move(owner)), shape, dtype, device));
}

Tensor HostCopy(const DLTensor& tensor) {
  Tensor made = Tensor::Empty(ffi::Shape(ShapeOf(tensor).begin(), ShapeOf(tensor).end()),
                              tensor.dtype, kCpu);
  if (IsHostMemory(tensor.device)) {
    if (const size_t nbytes = BytesOf(tensor)) std::memcpy(made->data, DataOf(tensor), nbytes);
  } else {
    Tensor::CopyFromTo(&tensor, const_cast<DLTensor*>(made.operator->()));
    Synchronize(tensor.device);
  }
  return made;
}

}  // namespace tvm_edge
