#include "result_memory.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <algorithm>
#include <utility>

namespace tvm_edge {
namespace {

thread_local const std::vector<ResultMemory>* offered_memory = nullptr;

bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

/*! \brief Bytes of a tensor; more than there can be where a length is negative or too large. */
size_t BytesOf(const ffi::Shape& shape, DLDataType dtype) {
  size_t nbytes = (size_t{dtype.bits} * dtype.lanes + 7) / 8;
  for (int64_t length : shape) {
    if (length < 0 || __builtin_mul_overflow(nbytes, static_cast<size_t>(length), &nbytes)) {
      return SIZE_MAX;
    }
  }
  return nbytes;
}

/*! \brief A tensor for a result, in the caller's memory or in the virtual machine's pool. */
ffi::Tensor Allocate(int64_t result, const ffi::Shape& shape, DLDataType dtype) {
  using tvm::runtime::memory::AllocatorType;
  using tvm::runtime::memory::MemoryManager;
  if (offered_memory != nullptr && result < static_cast<int64_t>(offered_memory->size())) {
    const ResultMemory& memory = (*offered_memory)[static_cast<size_t>(result)];
    if (memory.data != nullptr && BytesOf(shape, dtype) <= memory.nbytes) {
      return Over(memory.data, shape, dtype, kCpu, nullptr);
    }
  }
  return MemoryManager::GetOrCreateAllocator(kCpu, AllocatorType::kPooled)
      ->Empty(shape, dtype, kCpu);
}

}  // namespace

OfferedMemory::OfferedMemory(const std::vector<ResultMemory>& offered,
                             const std::vector<Tensor>& inputs)
    : usable_(offered) {
  for (size_t i = 0; i < usable_.size(); ++i) {
    ResultMemory& memory = usable_[i];
    if (memory.data == nullptr) continue;
    const auto overlaps = [&](const void* data, size_t nbytes) {
      return Overlap(memory.data, memory.nbytes, data, nbytes);
    };
    bool usable = IsAligned(memory.data);
    for (const Tensor& input : inputs) {
      usable = usable && !overlaps(DataOf(*input.operator->()), tvm_edge::BytesOf(input));
    }
    for (size_t before = 0; before < i; ++before) {
      usable = usable && !overlaps(usable_[before].data, usable_[before].nbytes);
    }
    if (!usable) memory = {};
  }
  outside_ = std::exchange(offered_memory, &usable_);
}

OfferedMemory::~OfferedMemory() { offered_memory = outside_; }

void RegisterResultMemory() {
  tvm::ffi::reflection::GlobalDef().def("vm.builtin.tvm_edge.result", Allocate);
}

}  // namespace tvm_edge
