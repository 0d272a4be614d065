// Tensors of the C API and those of sessions.
#pragma once

#include <tvm_edge/tvm_edge.h>

#include <vector>

#include "session.h"

namespace tvm_edge {

/*! \brief What a caller is told of an input or output. \throws ffi::Error */
tvm_edge_spec SpecOf(const TensorSpec& spec);

/*!
 * \brief Inputs over the caller's memory, in the order of a choice's.
 * \throws ffi::Error An InputError: other names, no data, another size.
 */
std::vector<Tensor> InputsOf(const Signature& signature, const Choice& choice,
                             const tvm_edge_tensor* inputs, size_t count);

/*! \brief Which of a choice's outputs a caller wants. \throws ffi::Error An InputError. */
std::vector<size_t> WantedOutputs(const Signature& signature, const Choice& choice,
                                  const tvm_edge_tensor* outputs, size_t count);

/*!
 * \brief The caller's memory for each of `count` results; none at all where the library's is wanted.
 * \param wanted Positions of `outputs` among the results.
 */
std::vector<ResultMemory> MemoryOf(size_t count, const std::vector<size_t>& wanted,
                                   const tvm_edge_tensor* outputs);

/*!
 * \brief Hand a result out, or see that it is in the caller's memory.
 * \throws ffi::Error An InputError: it has no room there.
 */
void HandOut(const Session& session, const Choice& choice, size_t which,
             const std::vector<Tensor>& results, bool on_device, tvm_edge_tensor* output);

void ReleaseOwned(tvm_edge_tensor* output);

/*! \brief Inputs of zeros, of typical shapes. */
std::vector<Tensor> Zeros(const Signature& signature, const Choice& choice);

}  // namespace tvm_edge
