// Runs on inputs that are where kernels read them already: for benchmarks and profiles.
#include <optional>
#include <utility>

#include "session.h"

namespace tvm_edge {

std::vector<Tensor> Session::Place(const Choice& choice, std::vector<Tensor> inputs) {
  Bind(signature_, choice, &inputs);
  CheckProcess();
  std::optional<Captures::Shared> driver;
  if (main_device_->may_capture()) driver.emplace();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int device = signature_.devices.inputs[static_cast<size_t>(choice.inputs[i])];
    // TVM's own VirtualMachine.set_input sends all to the first device (apache/tvm#17884).
    inputs[i] = devices_[static_cast<size_t>(device)]->Place(inputs[i]);
  }
  return inputs;
}

void Session::RunPlaced(const Choice& choice, const std::vector<Tensor>& placed, int64_t runs) {
  CheckProcess();
  const std::lock_guard<std::timed_mutex> lock(machines_[0]->lock);
  auto next = placed.begin();
  for (const EntryPoint& entry : choice.entries) {
    const auto end = next + static_cast<std::ptrdiff_t>(entry.inputs.size());
    const std::vector<Tensor> own(next, end);
    next = end;
    InContext(nullptr, [&] {
      RunningOnThreads threads(threads_);
      for (int64_t run = 0; run < runs; ++run) {
        MakingWay([&] { return Call(machines_[0].get(), entry.function, own); });
      }
      Synchronize();
      return 0;
    });
  }
}

void Session::RunInstrumented(const Choice& choice, std::vector<Tensor> inputs,
                              const ffi::Function& instrument) {
  const std::vector<Tensor> placed = Place(choice, std::move(inputs));
  const ffi::Function around = ffi::Function::FromPacked(
      [this, instrument](ffi::PackedArgs args, ffi::Any* result) {
        Synchronize();
        instrument(args[1], args[2]);
        *result = 0;
      });
  const std::lock_guard<std::timed_mutex> lock(machines_[0]->lock);
  auto next = placed.begin();
  for (const EntryPoint& entry : choice.entries) {
    const auto end = next + static_cast<std::ptrdiff_t>(entry.inputs.size());
    // A machine of its own: an instrument cannot be taken off again.
    auto machine = MakeVirtualMachine();
    machine->Instrument(around);
    // What a driver replays calls nothing that an instrument could see.
    const std::string plain = KernelByKernel(entry.function);
    const Entry function(machine, machine->Has(plain) ? plain : entry.function);
    const std::vector<Tensor> own(next, end);
    next = end;
    InContext(nullptr, [&] {
      RunningOnThreads threads(threads_);
      function(WithWeights(own));
      return 0;
    });
  }
}

}  // namespace tvm_edge
