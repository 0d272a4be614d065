#include "error.h"

#include <mutex>
#include <utility>

#include "text.h"

namespace tvm_edge {
namespace {

struct Thrown {
  std::string message;
  Details details;
};
thread_local Thrown last_thrown;

struct LogTarget {
  std::mutex lock;
  LogFunction log = nullptr;
  void* context = nullptr;
};
LogTarget& log_target() {
  static auto* target = new LogTarget();
  return *target;
}

}  // namespace

void Throw(const char* kind, const std::string& message, Details details) {
  // Python decodes it, and has no error to raise where it cannot.
  const std::string decodable = InUtf8(message);
  last_thrown = {decodable, std::move(details)};
  throw ffi::Error(kind, decodable, "");
}

const Details& DetailsOf(const std::string& message) {
  static const Details none;
  return last_thrown.message == message ? last_thrown.details : none;
}

bool IsOutOfMemory(const std::string& message) {
  return message.find("out of memory") != std::string::npos ||
         message.find("std::bad_alloc") != std::string::npos;
}

void SetLog(LogFunction log, void* context) {
  std::lock_guard<std::mutex> lock(log_target().lock);
  log_target().log = log;
  log_target().context = context;
}

void Log(const char* level, const std::string& message) {
  std::lock_guard<std::mutex> lock(log_target().lock);
  if (log_target().log) log_target().log(log_target().context, level, message.c_str());
}

}  // namespace tvm_edge
