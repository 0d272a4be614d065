// Memory of callers in which kernels of the CPU leave results, so that nobody copies them.
//
// The compiler has each result of a model on the CPU allocated by vm.builtin.tvm_edge.result
// (relay_passes/memory/result_memory.py). Where the caller has memory for it, it lies there.
#pragma once

#include <vector>

#include "tensors.h"

namespace tvm_edge {

/*! \brief Memory for a result; null: the library's. */
struct ResultMemory {
  void* data = nullptr;
  size_t nbytes = 0;
};

/*! \brief While it lives, results of a run on this thread lie in memory that was offered. */
class OfferedMemory {
 public:
  /*!
   * \param offered By the result's position; must outlive this.
   * \param inputs Kernels read them: memory that overlaps with one is not used, nor is memory that
   * does not begin on 64 bytes.
   */
  OfferedMemory(const std::vector<ResultMemory>& offered, const std::vector<Tensor>& inputs);
  ~OfferedMemory();
  OfferedMemory(const OfferedMemory&) = delete;
  OfferedMemory& operator=(const OfferedMemory&) = delete;

 private:
  std::vector<ResultMemory> usable_;
  const std::vector<ResultMemory>* outside_;
};

/*! \brief Add vm.builtin.tvm_edge.result to TVM's registry. */
void RegisterResultMemory();

}  // namespace tvm_edge
