/*!
 * \brief Host memory for the tensors of one run of a model whose lengths differ from run to run.
 *
 * The virtual machine's pool keeps a block that was freed for the next tensor of just its size, so
 * that each new shape had all its memory from the system: 2 us for every 4 KiB that it touches. An
 * arena is kept for any run that it is large enough for.
 */
#ifndef TVM_EDGE_ARENA_H_
#define TVM_EDGE_ARENA_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

namespace tvm_edge {

/*!
 * \brief Memory of so many bytes each, that goes back when the last of the tensors is freed.
 * \throws std::bad_alloc The system has no such memory.
 */
tvm::ffi::Array<tvm::ffi::Tensor> ArenaParts(const tvm::ffi::Shape& sizes);

/*! \brief Give the memory of arenas that no run holds back to the system. */
void ReleaseArenas();

}  // namespace tvm_edge

#endif  // TVM_EDGE_ARENA_H_
