// Host memory for the tensors of one run of a model whose lengths differ from run to run.
//
// The virtual machine's pool keeps a block that was freed for the next tensor of just its size, so
// that each new shape had all its memory from the system: 2 us for every 4 KiB that it touches. An
// arena is kept for any run that it is large enough for.
#pragma once

namespace tvm_edge {

/*!
 * \brief Add the functions to TVM's registry: vm.builtin.tvm_edge.arena_parts, which returns a
 * tensor for each of some sizes, and tvm_edge.release_arenas, which gives what no run holds back.
 */
void RegisterArenas();

}  // namespace tvm_edge
