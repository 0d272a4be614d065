// Errors of models and artifacts: TVM's own, of kinds that Python has classes for.
#pragma once

#include <tvm/ffi/error.h>

#include <string>

namespace tvm_edge {
namespace ffi = tvm::ffi;

/*! \brief Kinds of ffi::Error, by the names that Python registers its classes under. */
constexpr const char* kInputError = "tvm_edge.InputError";
constexpr const char* kArtifactError = "tvm_edge.ArtifactError";
constexpr const char* kDeviceUnavailableError = "tvm_edge.DeviceUnavailableError";
constexpr const char* kMemoryError = "MemoryError";

/*! \brief The argument at fault, what it should have been, and what it was. */
struct Details {
  std::string name;
  std::string expected;
  std::string got;
};

[[noreturn]] void Throw(const char* kind, const std::string& message, Details details = {});

[[noreturn]] inline void ThrowArtifact(const std::string& message) {
  Throw(kArtifactError, message);
}
[[noreturn]] inline void ThrowInput(const std::string& message, Details details) {
  Throw(kInputError, message, std::move(details));
}

/*! \brief Details of an error that this thread threw; empty if it was another's. */
const Details& DetailsOf(const std::string& message);

/*! \brief Whether an error says that a device, or the host, has no such memory. */
bool IsOutOfMemory(const std::string& message);

/*! \brief Call `handle` with level ("info", "warning") and message of what a log should have. */
using LogFunction = void (*)(void* context, const char* level, const char* message);
void SetLog(LogFunction log, void* context);
void Log(const char* level, const std::string& message);

}  // namespace tvm_edge
