#include "entry.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <algorithm>
#include <new>
#include <utility>

#include "error.h"
#include "text.h"

namespace tvm_edge {
namespace {

/*! \brief How a kernel's assertion begins (schedules/emit.py: require). */
constexpr const char* kRefused = "the inputs' values do not fit: ";

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

[[noreturn]] void RefuseSize() {
  ThrowInput(
      "the run needs more memory than there is; check the inputs' values where they say how large "
      "a result is, and the shapes the model was compiled for",
      {"inputs", "", ""});
}

[[noreturn]] void Translate(const ffi::Error& error, const std::string& name) {
  const std::string reason = error.message();
  if (Contains(reason, "std::bad_alloc")) RefuseSize();
  // How the virtual machine and kernels refuse an argument.
  if (Contains(reason, std::string("Invoking function ") + kMain) ||
      Contains(reason, "when calling:") || Contains(reason, "fn=" + name + ", loc=param")) {
    ThrowArtifact("the code of this model takes other inputs or weights than its manifest says (" +
                  OneLine(reason) + "); export it again");
  }
  if (const size_t at = reason.find(kRefused); at != std::string::npos) {  // a kernel's own check
    ThrowInput(reason.substr(at, reason.find('\n', at) - at) + "; check the inputs' values",
               {"inputs", "", ""});
  }
  if (Contains(reason, "ErrorContext(")) {
    ThrowInput("shapes that this model computes from its inputs' values do not fit (" +
                   OneLine(reason) + "); check the values",
               {"inputs", "", ""});
  }
  throw error;  // the device's
}

void RefuseNegativeShapes(const std::vector<ffi::Any>& results) {
  for (const ffi::Any& result : results) {
    auto tensor = result.as<ffi::Tensor>();
    if (!tensor) continue;
    const auto shape = tensor->shape();
    if (std::any_of(shape.begin(), shape.end(), [](int64_t length) { return length < 0; })) {
      ThrowInput(
          "a shape that this model computes from its inputs' values is negative; check the values",
          {"inputs", "", ""});
    }
  }
}

}  // namespace

VirtualMachine::VirtualMachine(const ffi::Module& code, const std::vector<DLDevice>& devices)
    : module_(code->GetFunction("vm_load_executable", true).value()().cast<ffi::Module>()) {
  std::vector<DLDevice> all = devices;
  // Shape functions run on the CPU.
  if (all.empty() || all.back().device_type != kDLCPU) all.push_back(kCpu);
  std::vector<ffi::AnyView> arguments;
  for (const DLDevice& device : all) {
    arguments.push_back(static_cast<int64_t>(device.device_type));
    arguments.push_back(static_cast<int64_t>(device.device_id));
    arguments.push_back(static_cast<int64_t>(tvm::runtime::memory::AllocatorType::kPooled));
  }
  ffi::Any nothing;
  Find("vm_initialization").CallPacked(arguments.data(), static_cast<int>(arguments.size()),
                                       &nothing);
}

Entry::Entry(std::shared_ptr<VirtualMachine> machine, std::string name)
    : machine_(std::move(machine)), name_(std::move(name)), function_(nullptr) {
  if (!machine_->Has(name_)) {
    ThrowArtifact("the code of this model has no function " + Quoted(name_) +
                  ", which its manifest names; export it again");
  }
  function_ = machine_->Find(name_);
}

std::vector<ffi::Any> Entry::operator()(const Arguments& arguments) const {
  ffi::Any result;
  try {
    function_.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
  } catch (const ffi::Error& error) {
    Translate(error, name_);
  } catch (const std::bad_alloc&) {
    RefuseSize();
  }
  std::vector<ffi::Any> results;
  if (auto list = result.as<ffi::Array<ffi::Any>>()) {
    results.assign(list->begin(), list->end());
  } else {
    results.push_back(std::move(result));
  }
  RefuseNegativeShapes(results);
  return results;
}

std::vector<Tensor> TensorsOf(const std::vector<ffi::Any>& results) {
  std::vector<Tensor> tensors;
  tensors.reserve(results.size());
  for (const ffi::Any& result : results) {
    auto tensor = result.as<ffi::Tensor>();
    if (!tensor) {
      ThrowArtifact("the code of this model returns what is no tensor; export it again");
    }
    tensors.push_back(*tensor);
  }
  return tensors;
}

}  // namespace tvm_edge
