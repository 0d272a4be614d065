// A model's entry into compiled code, and what the virtual machine raises there as our errors.
#pragma once

#include <tvm/ffi/extra/module.h>

#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "tensors.h"

namespace tvm_edge {

/*! \brief The entry that runs all models of an artifact. */
constexpr const char* kMain = "main";
/*! \brief A function that tells, as a shape, which inputs may begin anywhere. */
constexpr const char* kUnalignedInputs = "unaligned_inputs";

/*! \brief The entry of one of several models. */
inline std::string FunctionOf(int model) { return std::string(kMain) + "_" + std::to_string(model); }
/*! \brief An entry without recorded launches, in code that has them. */
inline std::string KernelByKernel(const std::string& function) {
  return function + "_kernel_by_kernel";
}
/*!
 * \brief An entry that is recorded for each shape of its inputs, beside one that is not. It takes
 * the memory of its tensors before the weights, a tensor for each of PartSizes.
 */
inline std::string ByShape(const std::string& function) { return function + "_by_shape"; }
inline std::string PartSizes(const std::string& function) { return function + "_part_sizes"; }
/*! \brief The function of a stage of main, and the device, of a model's, that it runs on. */
inline std::string StageName(size_t number, size_t device) {
  return "main_stage_" + std::to_string(number) + "_on_device_" + std::to_string(device);
}

using Arguments = std::vector<ffi::AnyView>;

/*! \brief TVM's virtual machine for some code: one run at a time. */
class VirtualMachine {
 public:
  /*! \param devices Those of the code's virtual devices, in order; the CPU is there anyway. */
  VirtualMachine(const ffi::Module& code, const std::vector<DLDevice>& devices);

  bool Has(const std::string& function) const {
    return module_->ImplementsFunction(function);
  }
  ffi::Function Find(const std::string& function) const {
    return module_->GetFunction(function).value();
  }
  /*! \brief Call something around every call of the machine; it cannot be taken off again. */
  void Instrument(const ffi::Function& around) { Find("set_instrument")(around); }

 private:
  ffi::Module module_;
};

/*! \brief A function of a virtual machine that takes inputs and, last, the weights. */
class Entry {
 public:
  /*! \throws ffi::Error An ArtifactError: the code has no such function. */
  Entry(std::shared_ptr<VirtualMachine> machine, std::string name);

  /*! \brief What it returns, which may be tensors or shapes; one is a list of one. */
  std::vector<ffi::Any> operator()(const Arguments& arguments) const;

 private:
  std::shared_ptr<VirtualMachine> machine_;
  std::string name_;
  ffi::Function function_;
};

/*! \brief Results that must be tensors. \throws ffi::Error An ArtifactError. */
std::vector<Tensor> TensorsOf(const std::vector<ffi::Any>& results);

}  // namespace tvm_edge
