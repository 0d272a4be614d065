#include "command_buffer.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "error.h"
#include "library.h"
#include "program.h"

namespace tvm_edge::opencl {
namespace {

constexpr const char* kExtension = "cl_khr_command_buffer";
constexpr const char* kVariable = "TVM_EDGE_OPENCL_COMMAND_BUFFER";

thread_local CommandBuffer* thread_recording = nullptr;

/*! \brief Major version of an extension; -1 where the driver does not tell, before OpenCL 3.0. */
int MajorVersion(cl_device_id device, const char* extension) {
  size_t bytes = 0;
  if (cl().clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS_WITH_VERSION, 0, nullptr, &bytes) !=
      CL_SUCCESS) {
    return -1;
  }
  std::vector<cl_name_version> all(bytes / sizeof(cl_name_version));
  if (cl().clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS_WITH_VERSION, bytes, all.data(), nullptr) !=
      CL_SUCCESS) {
    return -1;
  }
  for (const cl_name_version& each : all) {
    if (std::strncmp(each.name, extension, sizeof(each.name)) == 0) {
      return static_cast<int>(each.version >> 22);
    }
  }
  return -1;
}

[[noreturn]] void FailRecording(cl_int status, const Device& device, const std::string& what) {
  // Not Fail: a driver that refuses a queue for recording has not lost the device.
  TVM_FFI_THROW(RuntimeError) << "OpenCL device " << device.Describe() << ": " << what
                              << " failed with " << StatusName(status);
  TVM_FFI_UNREACHABLE();
}

}  // namespace

CommandBuffers::CommandBuffers(const Device& device) { missing_ = Look(device); }

std::string CommandBuffers::Look(const Device& device) {
  const char* variable = std::getenv(kVariable);
  const std::string wanted = variable == nullptr ? "" : variable;
  if (!wanted.empty() && wanted != "0" && wanted != "1") {
    FailVariable(kVariable, wanted, "must be 0 or 1", "0 or 1");
  }
  if (wanted == "0") return std::string(kVariable) + "=0";
  if (!device.info.has(kExtension)) return std::string("the driver has no ") + kExtension;
  const int major = MajorVersion(device.id, kExtension);
  if (major > 1) {
    return std::string(kExtension) + " " + std::to_string(major) + ".x is newer than known";
  }
  if (cl().clGetExtensionFunctionAddressForPlatform == nullptr) {
    return cl().path + " gives no access to extensions";
  }
#define TVM_EDGE_LOAD(name, result, parameters)                                                    \
  name = reinterpret_cast<result(*) parameters>(                                                   \
      cl().clGetExtensionFunctionAddressForPlatform(device.platform, #name));                      \
  if (name == nullptr) return "the driver lacks " #name;
  TVM_EDGE_OPENCL_COMMAND_BUFFER(TVM_EDGE_LOAD)
#undef TVM_EDGE_LOAD
  auto ask = [&](cl_info which, cl_bitfield* value) {
    return cl().clGetDeviceInfo(device.id, which, sizeof(*value), value, nullptr) == CL_SUCCESS;
  };
  cl_bitfield capabilities = 0, required = 0;
  if (!ask(CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR, &capabilities) ||
      !ask(CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR, &required)) {
    return std::string("the driver does not say what its ") + kExtension + " can do";
  }
  // Streams are in order and, while nothing is timed, without profiling.
  if (required != 0) return "the driver records for queues with other properties only";
  simultaneous_ = (capabilities & CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR) != 0;
  return "";
}

void CommandBuffers::CountRecorded(size_t launches) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.recorded;
  stats_.launches += static_cast<int64_t>(launches);
}

void CommandBuffers::CountFailed(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stats_.failed++ == 0) failure_ = reason;
}

CommandBuffers::Stats CommandBuffers::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  Stats stats = stats_;
  stats.replayed = replayed_.load(std::memory_order_relaxed);
  stats.plain = plain_.load(std::memory_order_relaxed);
  return stats;
}

std::string CommandBuffers::TakeFailure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(failure_, {});
}

CommandBuffer::CommandBuffer(Device* device, cl_command_queue queue) : device(device) {
  const CommandBuffers& extension = device->command_buffers;
  // So that the next frame may be enqueued while one runs.
  const cl_ulong properties[] = {CL_COMMAND_BUFFER_FLAGS_KHR,
                                 CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR, 0};
  cl_int status = CL_SUCCESS;
  handle_ = extension.clCreateCommandBufferKHR(
      1, &queue, extension.simultaneous() ? properties : nullptr, &status);
  if (status == CL_SUCCESS && handle_ != nullptr) return;
  FailRecording(status, *device, "creating a command buffer");
}

CommandBuffer::~CommandBuffer() {
  if (Forked()) return;
  // Who drops a model frees its memory next.
  device->streams.QuiesceAll();
  device->command_buffers.clReleaseCommandBufferKHR(handle_);
}

void CommandBuffer::Append(std::unique_ptr<Kernel> kernel, const std::string& name,
                           cl_uint dimensions, const size_t* global, const size_t* local,
                           const std::vector<Allocation*>& blocks) {
  // Recorded for one in-order queue, commands run one after the other: no sync points.
  const cl_int status = device->command_buffers.clCommandNDRangeKernelKHR(
      handle_, nullptr, nullptr, kernel->handle, dimensions, nullptr, global, local, 0, nullptr,
      nullptr, nullptr);
  if (status != CL_SUCCESS) FailRecording(status, *device, "recording kernel '" + name + "'");
  kernels_.push_back(std::move(kernel));
  for (Allocation* block : blocks) {
    if (std::find(blocks_.begin(), blocks_.end(), block) == blocks_.end()) {
      blocks_.push_back(block);
    }
  }
}

void CommandBuffer::Finalize() {
  const cl_int status = device->command_buffers.clFinalizeCommandBufferKHR(handle_);
  if (status != CL_SUCCESS) FailRecording(status, *device, "finalizing a command buffer");
}

cl_int CommandBuffer::Replay(Stream* stream) {
  const CommandBuffers& extension = device->command_buffers;
  if (last_ != nullptr) {
    const cl_event last = last_.get();
    const cl_int status = cl().clWaitForEvents(1, &last);
    last_ = nullptr;
    Check(status, device, "waiting for recorded kernels");
  }
  return stream->SubmitRecorded(
      launches(),
      [&](cl_command_queue queue, cl_event* event) {
        return extension.clEnqueueCommandBufferKHR(1, &queue, handle_, 0, nullptr, event);
      },
      extension.simultaneous() ? nullptr : &last_);
}

bool CommandBuffer::HasViews() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const Allocation* block) {
    return block->views.load(std::memory_order_relaxed) > 0;
  });
}

CommandBuffer* ThreadRecording() { return thread_recording; }

void RefuseWhileRecording(const char* what) {
  if (thread_recording == nullptr) return;
  TVM_FFI_THROW(RuntimeError) << what << " between launches that are being recorded";
}

RecordingScope::RecordingScope(CommandBuffer* commands) { thread_recording = commands; }

RecordingScope::~RecordingScope() { thread_recording = nullptr; }

}  // namespace tvm_edge::opencl
