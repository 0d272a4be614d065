#include "model.h"

#include <utility>

#include "error.h"
#include "host.h"
#include "text.h"

namespace tvm_edge {

std::shared_ptr<Task> RunQueue::Submit(size_t most, std::function<void()> run) {
  {
    std::unique_lock<std::mutex> lock(count_->lock);
    count_->changed.wait(lock, [&] { return count_->pending < std::max<size_t>(most, 1); });
    ++count_->pending;
  }
  return thread_.Submit([count = count_, run = std::move(run)] {
    // Whatever it throws.
    const std::shared_ptr<void> done(nullptr, [count](void*) {
      std::lock_guard<std::mutex> lock(count->lock);
      --count->pending;
      count->changed.notify_all();
    });
    run();
  });
}

ffi::Module LoadCode(const Artifact& artifact, const Device& device) {
  const std::string what = "the artifact " + Quoted(artifact.path);
  ffi::Module module = LoadLibrary(what, *artifact.library);
  if (!artifact.smaller) return module;
  const auto too_large = device.TooLargeKernels(module);
  if (too_large.empty()) return module;
  Log("info", artifact.signature.model + ": the driver allows smaller work-groups than chosen for " +
                  Joined(too_large) + "; all are smaller now");
  return LoadLibrary(what, *artifact.smaller);
}

Model::Model(std::shared_ptr<Artifact> artifact, const LoadOptions& options)
    : artifact_(std::move(artifact)) {
  const Signature& signature = artifact_->signature;
  const std::string what = "the artifact " + Quoted(artifact_->path);
  ThreadChoice threads = ResolveThreads(options.num_threads, options.cpus);
  CheckHost(what, signature.architecture, signature.features);
  const int64_t index = DeviceIndex(options.device, signature.kind);
  const auto device = Device::Make(signature.kind, index);
  device->Open();  // before the library, which may hold code that no loader here knows
  if (!artifact_->programs.empty()) {
    try {
      device->LoadPrograms(artifact_->programs);
    } catch (const ffi::Error& error) {
      ThrowArtifact(what + ": " + OneLine(error.message()) + "; export it again");
    }
    artifact_->programs.clear();  // the driver has them from here on
  }
  session_ = std::make_unique<Session>(LoadCode(*artifact_, *device), artifact_->weights,
                                       signature, std::move(threads), index, artifact_);
}

}  // namespace tvm_edge
