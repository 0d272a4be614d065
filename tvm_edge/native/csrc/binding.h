// Inputs of a run: names, shapes, types and values that fit a model's signature.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "manifest.h"
#include "tensors.h"

namespace tvm_edge {

/*! \brief A function that runs some models of an artifact, and its tensors by position. */
struct EntryPoint {
  std::string function;
  std::vector<int> inputs, outputs;
};

/*! \brief Models that one call runs: their inputs, outputs and entries, to be run in this order. */
struct Choice {
  std::vector<EntryPoint> entries;
  std::vector<int> inputs, outputs;
  std::vector<int> numbers;  // models that run by themselves; empty for all together
};

/*! \brief All models, by one function in which kernels of different models may be merged. */
Choice EveryModel(const Signature& signature);
/*!
 * \brief Some models, one after the other; all of them together.
 * \throws ffi::Error An InputError: not names of models that the artifact has.
 */
Choice ChooseModels(const Signature& signature, const std::vector<std::string>& names);

/*! \brief Whether an artifact has no input of this name among those of models that do not run. */
bool IsIdle(const Signature& signature, const Choice& choice, const std::string& input);

/*!
 * \brief Refuse names that are not those of the inputs.
 * \throws ffi::Error An InputError, which says what is unknown or missing.
 */
[[noreturn]] void RefuseNames(const Signature& signature, const Choice& choice,
                              const std::vector<std::string>& given);
/*! \brief Refuse an output that no model that runs has. \throws ffi::Error An InputError. */
[[noreturn]] void RefuseOutput(const Signature& signature, const Choice& choice,
                               const std::string& name);
/*! \brief Refuse a type, by its name, or a shape, whatever other inputs are. */
void CheckInput(const TensorSpec& spec, const std::string& dtype, ffi::ShapeView shape);

/*!
 * \brief Check inputs, in the order of a choice's, and return them as the code has them.
 *
 * They are contiguous, in host memory or on a device of the kind that the model wants them on.
 * \throws ffi::Error An InputError with name, expected and got.
 */
void Bind(const Signature& signature, const Choice& choice, std::vector<Tensor>* inputs);

}  // namespace tvm_edge
