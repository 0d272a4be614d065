// The stages of a model on several devices: each device may work on another frame.
//
// The code has a function for each (relay_passes/instructions/add_stages.py). A stage takes what the
// one before returned, as it is.
#include <map>
#include <utility>

#include "session.h"

namespace tvm_edge {

const std::vector<Stage>& Session::stages() {
  std::call_once(stages_found_, [this] { FindStages(); });
  return stages_;
}

void Session::FindStages() {
  if (devices_.size() < 2) return;
  struct Own {
    std::shared_ptr<VirtualMachine> machine;
    std::shared_ptr<std::timed_mutex> lock;
  };
  std::map<size_t, Own> machines;
  while (true) {
    const size_t number = stages_.size();
    size_t device = 0;
    while (device < devices_.size() && !first_->Has(StageName(number, device))) ++device;
    if (device == devices_.size()) return;
    Own& own = machines[device];
    if (own.machine == nullptr) {
      own = {MakeVirtualMachine(), std::make_shared<std::timed_mutex>()};
    }
    stages_.push_back({device, own.lock, Entry(own.machine, StageName(number, device))});
  }
}

StagedFrame Session::RunFirstStage(std::vector<Tensor> inputs) {
  StagedFrame frame;
  // Bound here; the driver is shared with whoever records.
  for (Tensor& tensor : Place(every_, std::move(inputs))) {
    frame.taken.push_back(tensor->data);
    frame.values.push_back(std::move(tensor));
  }
  return RunStage(0, frame);
}

StagedFrame Session::RunStage(size_t number, const StagedFrame& frame) {
  const Stage& stage = stages().at(number);
  const Device* device = devices_[stage.device].get();
  const std::lock_guard<std::timed_mutex> lock(*stage.lock);
  return InContext(device, [&] {
    std::optional<RunningOnThreads> threads;
    if (device->is_host()) threads.emplace(threads_);
    Arguments arguments(frame.values.begin(), frame.values.end());
    arguments.push_back(weights_);
    return StagedFrame{stage.entry(arguments), frame.taken};
  });
}

std::vector<Tensor> Session::ResultsOf(const StagedFrame& frame) const {
  std::optional<Captures::Shared> driver;
  if (main_device_->may_capture()) driver.emplace();
  return Own(TensorsOf(frame.values), frame.taken);
}

}  // namespace tvm_edge
