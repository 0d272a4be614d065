#include "c_calls.h"

namespace tvm_edge {
namespace {

thread_local Failure failure;

tvm_edge_status StatusOf(const std::string& kind, const std::string& message) {
  if (kind == kInputError) return TVM_EDGE_INPUT_ERROR;
  if (kind == kArtifactError) return TVM_EDGE_ARTIFACT_ERROR;
  if (kind == kDeviceUnavailableError) return TVM_EDGE_DEVICE_UNAVAILABLE;
  if (kind == kMemoryError || IsOutOfMemory(message)) return TVM_EDGE_OUT_OF_MEMORY;
  return TVM_EDGE_INTERNAL_ERROR;
}

}  // namespace

const Failure& LastFailure() { return failure; }

Handles<Model>& LoadedModels() {
  static auto* handles = new Handles<Model>();
  return *handles;
}

tvm_edge_status Fail(tvm_edge_status status, std::string message, Details details) noexcept try {
  failure = {status, std::move(message), std::move(details)};
  return status;
} catch (...) {
  return status;
}

tvm_edge_status FailWith(const ffi::Error& error) noexcept try {
  const std::string message = error.message();
  return Fail(StatusOf(error.kind(), message), message, DetailsOf(message));
} catch (...) {
  return TVM_EDGE_OUT_OF_MEMORY;
}

tvm_edge_status RefuseHandle(const char* what) noexcept try {
  return Fail(TVM_EDGE_INVALID_HANDLE,
              std::string(what) + " is no handle, or was freed; make one, and free it once");
} catch (...) {
  return TVM_EDGE_INVALID_HANDLE;
}

void RequireArgument(const void* argument, const char* name) {
  if (argument == nullptr) {
    ThrowInput(std::string(name) + " is null; pass a pointer", {name, "a pointer", "null"});
  }
}

}  // namespace tvm_edge
