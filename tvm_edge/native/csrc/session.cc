#include "session.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "error.h"
#include "parallel_launch.h"
#include "text.h"

namespace tvm_edge {
namespace {

/*! \brief Whether elements of a tensor lie as the processor wants single ones. */
bool IsNaturallyAligned(const DLTensor& tensor) {
  const size_t item = std::max<size_t>(tensor.dtype.bits / 8, 1);
  return reinterpret_cast<uintptr_t>(DataOf(tensor)) % item == 0;
}

/*! \brief The inputs that need not begin on 64 bytes; none in artifacts of earlier versions. */
std::set<int> InputsAnywhere(const VirtualMachine& machine) {
  if (!machine.Has(kUnalignedInputs)) return {};
  const auto found = machine.Find(kUnalignedInputs)().cast<ffi::Shape>();
  return {found.begin(), found.end()};
}

}  // namespace

Session::Session(ffi::Module code, std::vector<Tensor> weights, const Signature& signature,
                 ThreadChoice threads, int64_t device_index, std::shared_ptr<Artifact> artifact)
    : signature_(signature),
      every_(EveryModel(signature)),
      threads_(std::move(threads)),
      code_(std::move(code)),
      main_device_(nullptr),
      process_(getpid()) {
  for (const std::string& kind : signature_.devices.kinds) {
    devices_.push_back(Device::Make(kind, device_index));
    devices_.back()->Open();
    if (main_device_ == nullptr && !devices_.back()->is_host()) main_device_ = devices_.back().get();
  }
  const Device* gpu = main_device_;
  if (gpu == nullptr) main_device_ = devices_[0].get();
  for (const auto& device : devices_) device->Build(code_);
  const size_t cpus = (threads_.cpus.empty() ? AllowedCpus() : threads_.cpus).size();
  const size_t count = gpu == nullptr ? cpus / static_cast<size_t>(threads_.count) : 1;
  for (size_t i = 0; i < std::max<size_t>(count, 1); ++i) {
    machines_.push_back(std::make_unique<Machine>());
  }
  for (const auto& device : devices_) replays_ = replays_ && device->ReplaysLaunches();
  {
    // Of an artifact the library is told; code in memory is made when its functions are looked up.
    std::optional<KernelsOnPool> on_pool;
    if (artifact == nullptr) on_pool.emplace();
    first_ = MakeVirtualMachine();
  }
  anywhere_ = InputsAnywhere(*first_);
  machines_[0]->entries.emplace(kMain, Entry(first_, NameOf(kMain)));
  const auto& plan = signature_.devices.weights;
  if (plan.size() != weights.size()) {
    ThrowArtifact("the plan of devices does not fit " + std::to_string(weights.size()) +
                  " weights; export the model again");
  }
  const int streamed = static_cast<int>(std::count(plan.begin(), plan.end(), kStreamed));
  streams_ = streamed > 0;
  host_weights_ = std::move(weights);
  BindWeights(host_weights_, artifact.get());
  if (signature_.kept_shapes) {
    shapes_ = std::make_unique<SeenShapes>(static_cast<size_t>(signature_.kept_shapes));
  }
  stream_ = std::make_unique<WeightStream>(host_weights_, streamed, gpu,
                                           static_cast<size_t>(signature_.largest_part));
  SurviveForks(this);
}

Session::~Session() { ForgetForks(this); }

void Session::BindWeights(const std::vector<Tensor>& weights, const Artifact* artifact) {
  ffi::Array<ffi::Any> bound;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int number = signature_.devices.weights[i];
    if (number == kStreamed) {
      weight_memory_.insert(weights[i]->data);
      bound.push_back(weights[i]);
      continue;
    }
    // Each where its device reads it.
    const Device& device = *devices_[static_cast<size_t>(number)];
    std::optional<Tensor> there = device.Share(weights[i]);
    if (!there) {
      std::optional<Captures::Shared> driver;
      if (device.may_capture()) driver.emplace();
      there = MakingWay([&] { return device.Upload(weights[i]); });
      if (artifact) {
        device.Sync();  // the copy may still be reading
        artifact->Release(i);
      }
    }
    weight_memory_.insert((*there)->data);
    bound.push_back(*there);
  }
  weights_ = bound;
}

std::shared_ptr<VirtualMachine> Session::MakeVirtualMachine() const {
  // The devices in the order of the code's virtual devices.
  std::vector<DLDevice> others;
  for (const auto& device : devices_) {
    if (!device->is_host()) others.push_back(device->handle());
  }
  ++machines_made_;
  return std::make_shared<VirtualMachine>(code_, others);
}

std::string Session::NameOf(const std::string& function) const {
  // Where a driver does not replay launches, what leads to them costs the host 0.5 us a kernel.
  const std::string plain = KernelByKernel(function);
  return replays_ || !first_->Has(plain) ? function : plain;
}

const Entry& Session::EntryOf(Machine* machine, const std::string& function) {
  auto found = machine->entries.find(function);
  if (found == machine->entries.end()) {
    found = machine->entries.emplace(function, Entry(MakeVirtualMachine(), NameOf(function))).first;
  }
  return found->second;
}

ShapeRecordings* Session::RecordingsOf(Machine* machine, const std::string& function) {
  auto found = machine->recordings.find(function);
  if (found == machine->recordings.end()) {
    std::unique_ptr<ShapeRecordings> made;
    if (replays_ && first_->Has(ByShape(function))) {
      made = std::make_unique<ShapeRecordings>([this] { return MakeVirtualMachine(); }, function,
                                               main_device_->handle());
    }
    found = machine->recordings.emplace(function, std::move(made)).first;
  }
  return found->second.get();
}

Arguments Session::WithWeights(const std::vector<Tensor>& inputs) const {
  Arguments arguments;
  arguments.reserve(inputs.size() + 1);
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  arguments.push_back(weights_);
  return arguments;
}

std::vector<Tensor> Session::Call(Machine* machine, const std::string& function,
                                  const std::vector<Tensor>& inputs) {
  const Entry& entry = EntryOf(machine, function);
  ShapeRecordings* recordings = RecordingsOf(machine, function);
  if (recordings) return TensorsOf(recordings->Run(inputs, weights_, entry));
  return TensorsOf(entry(WithWeights(inputs)));
}

Tensor Session::Staged(Machine* machine, int index, const Tensor& value) const {
  const Device& device = *devices_[static_cast<size_t>(signature_.devices.inputs[index])];
  const DLTensor& tensor = *value.operator->();
  if (!device.is_host() || !IsHostMemory(tensor.device)) return device.Place(value);
  if (BytesOf(tensor) == 0) {  // whose strides may be anything
    return Tensor::Empty(ffi::Shape(ShapeOf(tensor).begin(), ShapeOf(tensor).end()), tensor.dtype,
                         kCpu);
  }
  const bool usable =
      IsAligned(DataOf(tensor)) || (anywhere_.count(index) && IsNaturallyAligned(tensor));
  if (!usable) {
    ++inputs_staged_;
    return machine->staging.Copied(index, tensor);
  }
  if (tensor.byte_offset == 0 && tensor.device.device_type == kDLCPU) return value;
  return Over(DataOf(tensor), ShapeOf(tensor), tensor.dtype, kCpu,
              std::make_shared<Tensor>(value));
}

std::vector<Tensor> Session::RunEntry(Machine* machine, const EntryPoint& entry,
                                      const std::vector<Tensor>& inputs,
                                      const std::vector<ResultMemory>& memory) {
  return InContext(nullptr, [&] {
    RunningOnThreads threads(threads_);
    return MakingWay([&] {
      std::vector<Tensor> staged;
      std::vector<const void*> taken;
      for (size_t i = 0; i < inputs.size(); ++i) {
        staged.push_back(Staged(machine, entry.inputs[i], inputs[i]));
        taken.push_back(staged.back()->data);
      }
      if (shapes_) shapes_->Note(staged);
      std::optional<OfferedMemory> offered;
      if (!memory.empty()) offered.emplace(memory, inputs);
      std::vector<Tensor> outputs = Call(machine, entry.function, staged);
      if (outputs.size() < entry.outputs.size()) {
        ThrowArtifact("the code of this model returns " + std::to_string(outputs.size()) +
                      " outputs, and its manifest names more; export it again");
      }
      outputs.resize(entry.outputs.size());  // what code returns after them is not the user's
      outputs = Own(std::move(outputs), std::move(taken));
      main_device_->FinishRun();
      return outputs;
    });
  });
}

std::vector<Tensor> Session::RunOn(Machine* machine, const Choice& choice,
                                   const std::vector<Tensor>& inputs,
                                   const std::vector<ResultMemory>& memory) {
  if (choice.entries.size() == 1) return RunEntry(machine, choice.entries[0], inputs, memory);
  std::vector<Tensor> outputs;
  auto next = inputs.begin();
  for (const EntryPoint& entry : choice.entries) {
    const auto end = next + static_cast<std::ptrdiff_t>(entry.inputs.size());
    std::vector<ResultMemory> own;
    if (!memory.empty()) {
      const auto first = memory.begin() + static_cast<std::ptrdiff_t>(outputs.size());
      own.assign(first, first + static_cast<std::ptrdiff_t>(entry.outputs.size()));
    }
    for (Tensor& output : RunEntry(machine, entry, std::vector<Tensor>(next, end), own)) {
      outputs.push_back(std::move(output));
    }
    next = end;
  }
  return outputs;
}

std::unique_lock<std::timed_mutex> Session::Choose(Machine** machine) {
  for (const auto& each : machines_) {
    std::unique_lock<std::timed_mutex> lock(each->lock, std::try_to_lock);
    if (lock) {
      *machine = each.get();
      return lock;
    }
  }
  *machine = machines_[turn_.fetch_add(1) % machines_.size()].get();
  return std::unique_lock<std::timed_mutex>((*machine)->lock);
}

std::vector<Tensor> Session::Run(const Choice& choice, std::vector<Tensor> inputs,
                                 const std::vector<ResultMemory>& memory) {
  Bind(signature_, choice, &inputs);
  CheckProcess();
  Machine* machine = nullptr;
  const auto lock = Choose(&machine);
  return RunOn(machine, choice, inputs, memory);
}

std::vector<Tensor> Session::WarmUp(const Choice& choice, std::vector<Tensor> inputs) {
  Bind(signature_, choice, &inputs);
  CheckProcess();
  std::vector<Tensor> outputs;
  for (const auto& machine : machines_) {
    const std::lock_guard<std::timed_mutex> lock(machine->lock);
    outputs = RunOn(machine.get(), choice, inputs);
    const bool records =
        std::any_of(choice.entries.begin(), choice.entries.end(), [&](const EntryPoint& entry) {
          return machine->recordings[entry.function] != nullptr;
        });
    if (records) outputs = RunOn(machine.get(), choice, inputs);  // which records the shape
  }
  return outputs;
}

std::vector<Tensor> Session::Own(std::vector<Tensor> outputs,
                                 std::vector<const void*> taken) const {
  for (Tensor& tensor : outputs) {
    const void* address = tensor->data;
    // One that is an input, a weight or another output.
    if (std::count(taken.begin(), taken.end(), address) || weight_memory_.count(address)) {
      tensor = tensor.CopyTo(tensor->device);
    }
    taken.push_back(address);
  }
  return outputs;
}

Tensor Session::OnHost(const Tensor& output) const {
  if (output->device.device_type == kDLCPU) return output;
  std::optional<Captures::Shared> driver;
  if (main_device_->may_capture()) driver.emplace();
  return HostCopy(*output.operator->());
}

void Session::CopyOut(const Tensor& output, void* into) const {
  const size_t nbytes = BytesOf(output);
  if (nbytes == 0) return;
  if (output->device.device_type == kDLCPU) {
    std::memcpy(into, DataOf(*output.operator->()), nbytes);
    return;
  }
  std::optional<Captures::Shared> driver;
  if (main_device_->may_capture()) driver.emplace();
  Tensor::CopyToBytes(output.operator->(), into, nbytes);
}

void Session::CopyWithin(const Tensor& output, const Tensor& into) const {
  if (BytesOf(output) == 0) return;
  std::optional<Captures::Shared> driver;
  if (main_device_->may_capture()) driver.emplace();
  Tensor::CopyFromTo(output.operator->(), const_cast<DLTensor*>(into.operator->()));
  tvm_edge::Synchronize(into->device);
}

void Session::Synchronize() const {
  for (const auto& device : devices_) device->Sync();
}

std::string Session::RecordingFailure() const {
  for (const auto& device : devices_) {
    const std::string reason = device->RecordingFailure();
    if (!reason.empty()) return reason;
  }
  return "";
}

std::vector<Shapes> Session::Recorded(const std::string& function) {
  const std::lock_guard<std::timed_mutex> lock(machines_[0]->lock);
  ShapeRecordings* recordings = RecordingsOf(machines_[0].get(), function);
  return recordings ? recordings->recorded() : std::vector<Shapes>{};
}

void Session::CheckProcess() const {
  if (getpid() == process_ || SurvivesForks()) return;
  // Drivers do not survive a fork, nor do the threads that read weights.
  Throw(kDeviceUnavailableError,
        "this model was loaded before the process forked, and drivers of GPUs do not survive "
        "that; load it in the child, or use multiprocessing's 'spawn'");
}

bool Session::SurvivesForks() const {
  return !streams_ && std::all_of(devices_.begin(), devices_.end(),
                                  [](const auto& device) { return device->is_host(); });
}

std::vector<std::timed_mutex*> Session::RunLocks() {
  std::vector<std::timed_mutex*> locks;
  if (!SurvivesForks()) return locks;
  for (const auto& machine : machines_) locks.push_back(&machine->lock);
  return locks;
}

void Session::ReplaceHeld(const std::set<std::timed_mutex*>& held) {
  for (auto& machine : machines_) {
    if (!held.count(&machine->lock)) continue;
    (void)machine.release();  // in the middle of a run that stayed behind
    machine = std::make_unique<Machine>();
  }
}

}  // namespace tvm_edge
