#include "error.h"

#include <tvm/ffi/error.h>

#include <cstdlib>

#include "../../native/csrc/error.h"
#include "device.h"

namespace tvm_edge::opencl {

std::string StatusName(cl_int status) {
  // Specification, appendix of error codes; extensions below -1000.
  // clang-format off
  static constexpr const char* kFirst[] = {
      "CL_SUCCESS", "CL_DEVICE_NOT_FOUND", "CL_DEVICE_NOT_AVAILABLE", "CL_COMPILER_NOT_AVAILABLE",
      "CL_MEM_OBJECT_ALLOCATION_FAILURE", "CL_OUT_OF_RESOURCES", "CL_OUT_OF_HOST_MEMORY",
      "CL_PROFILING_INFO_NOT_AVAILABLE", "CL_MEM_COPY_OVERLAP", "CL_IMAGE_FORMAT_MISMATCH",
      "CL_IMAGE_FORMAT_NOT_SUPPORTED", "CL_BUILD_PROGRAM_FAILURE", "CL_MAP_FAILURE",
      "CL_MISALIGNED_SUB_BUFFER_OFFSET", "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
      "CL_COMPILE_PROGRAM_FAILURE", "CL_LINKER_NOT_AVAILABLE", "CL_LINK_PROGRAM_FAILURE",
      "CL_DEVICE_PARTITION_FAILED", "CL_KERNEL_ARG_INFO_NOT_AVAILABLE"};
  static constexpr const char* kInvalid[] = {
      "CL_INVALID_VALUE", "CL_INVALID_DEVICE_TYPE", "CL_INVALID_PLATFORM", "CL_INVALID_DEVICE",
      "CL_INVALID_CONTEXT", "CL_INVALID_QUEUE_PROPERTIES", "CL_INVALID_COMMAND_QUEUE",
      "CL_INVALID_HOST_PTR", "CL_INVALID_MEM_OBJECT", "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR",
      "CL_INVALID_IMAGE_SIZE", "CL_INVALID_SAMPLER", "CL_INVALID_BINARY",
      "CL_INVALID_BUILD_OPTIONS", "CL_INVALID_PROGRAM", "CL_INVALID_PROGRAM_EXECUTABLE",
      "CL_INVALID_KERNEL_NAME", "CL_INVALID_KERNEL_DEFINITION", "CL_INVALID_KERNEL",
      "CL_INVALID_ARG_INDEX", "CL_INVALID_ARG_VALUE", "CL_INVALID_ARG_SIZE",
      "CL_INVALID_KERNEL_ARGS", "CL_INVALID_WORK_DIMENSION", "CL_INVALID_WORK_GROUP_SIZE",
      "CL_INVALID_WORK_ITEM_SIZE", "CL_INVALID_GLOBAL_OFFSET", "CL_INVALID_EVENT_WAIT_LIST",
      "CL_INVALID_EVENT", "CL_INVALID_OPERATION", "CL_INVALID_GL_OBJECT",
      "CL_INVALID_BUFFER_SIZE", "CL_INVALID_MIP_LEVEL", "CL_INVALID_GLOBAL_WORK_SIZE"};
  // clang-format on
  constexpr int kFirstCount = sizeof(kFirst) / sizeof(kFirst[0]);
  constexpr int kInvalidCount = sizeof(kInvalid) / sizeof(kInvalid[0]);
  if (status <= 0 && -status < kFirstCount) return kFirst[-status];
  if (status <= -30 && -status - 30 < kInvalidCount) return kInvalid[-status - 30];
  if (status == CL_PLATFORM_NOT_FOUND_KHR) return "CL_PLATFORM_NOT_FOUND_KHR";
  if (status == CL_INCOMPATIBLE_COMMAND_QUEUE_KHR) return "CL_INCOMPATIBLE_COMMAND_QUEUE_KHR";
  if (status == CL_INVALID_COMMAND_BUFFER_KHR) return "CL_INVALID_COMMAND_BUFFER_KHR";
  return "OpenCL status " + std::to_string(status);
}

bool IsLost(cl_int status) {
  // A kernel that faults on NVIDIA's driver invalidates the queue.
  return status == CL_DEVICE_NOT_AVAILABLE || status == CL_INVALID_COMMAND_QUEUE ||
         status == CL_UNKNOWN_ERROR_NV;
}

bool IsOutOfMemory(cl_int status) {
  return status == CL_MEM_OBJECT_ALLOCATION_FAILURE || status == CL_INVALID_BUFFER_SIZE ||
         status == CL_OUT_OF_HOST_MEMORY;
}

void Fail(cl_int status, Device* device, const std::string& what) {
  const std::string name = StatusName(status);
  if (IsLost(status)) {
    device->lost = true;
    TVM_FFI_THROW(RuntimeError) << "OpenCL device " << device->Describe() << " is lost: " << what
                                << " failed with " << name
                                << ". An earlier kernel faulted, or the driver was reset; start "
                                   "the process again";
  }
  if (status == CL_OUT_OF_HOST_MEMORY) {
    TVM_FFI_THROW(MemoryError) << "OpenCL device " << device->Describe() << ": " << what
                               << " failed with " << name
                               << "; where many launches wait, lower TVM_EDGE_OPENCL_IN_FLIGHT";
  }
  if (IsOutOfMemory(status)) {
    const Memory::Stats stats = device->memory.stats();
    TVM_FFI_THROW(MemoryError) << "OpenCL device " << device->Describe() << ": " << what
                               << " failed with " << name << "; tensors of this process use "
                               << stats.in_use << " of " << device->info.global_memory << " bytes";
  }
  if (status == CL_OUT_OF_RESOURCES) {
    TVM_FFI_THROW(RuntimeError) << "OpenCL device " << device->Describe() << ": " << what
                                << " failed with " << name
                                << ": the kernel needs more registers or local memory than there "
                                   "are, or an earlier one accessed memory out of bounds";
  }
  TVM_FFI_THROW(RuntimeError) << "OpenCL device " << device->Describe() << ": " << what
                              << " failed with " << name;
  TVM_FFI_UNREACHABLE();
}

void FailVariable(const char* name, const std::string& value, const std::string& must,
                  const char* allowed) {
  ThrowInput("the environment variable " + std::string(name) + " is " + value + ", and " + must,
             {name, allowed, value});
}

int64_t CountVariable(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  const std::string text = value == nullptr ? "" : value;
  if (text.empty()) return otherwise;
  const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
  const int64_t count = digits ? std::strtoll(value, nullptr, 10) : 0;
  if (count < 1) FailVariable(name, text, "must be a positive whole number", "a positive whole number");
  return count;
}

void FailAllocation(cl_int status, Device* device, size_t bytes) {
  const Memory::Stats stats = device->memory.stats();
  const cl_ulong total = device->info.global_memory;
  TVM_FFI_THROW(MemoryError) << "OpenCL device " << device->Describe() << " is out of memory ("
                             << StatusName(status) << "): asked for " << bytes
                             << " bytes; tensors of this process use " << stats.in_use << " of "
                             << total << " bytes, which leaves "
                             << (total > stats.in_use ? total - stats.in_use : 0)
                             << " free; one allocation may have up to "
                             << device->info.max_allocation << " bytes";
  TVM_FFI_UNREACHABLE();
}

}  // namespace tvm_edge::opencl
