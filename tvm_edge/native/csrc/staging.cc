// Aligned memory for a model's inputs, to be used again.
#include <algorithm>
#include <cstring>

#include "session.h"

namespace tvm_edge {

Tensor Staging::Copied(int index, const DLTensor& value) {
  Staged& staged = staged_[index];
  const size_t nbytes = BytesOf(value);
  if (!staged.memory.defined() || BytesOf(staged.memory) < nbytes) {
    staged.memory = EmptyBytes(nbytes);
    staged.view = Tensor();
  }
  const ffi::ShapeView shape = ShapeOf(value);
  const bool fits = staged.view.defined() &&
                    std::equal(shape.begin(), shape.end(), staged.view->shape,
                               staged.view->shape + staged.view->ndim);
  if (!fits) staged.view = ViewOf(staged.memory, shape, value.dtype);
  std::memcpy(staged.view->data, DataOf(value), nbytes);
  return staged.view;
}

}  // namespace tvm_edge
