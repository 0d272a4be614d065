#include "copy.h"

#include <tvm/ffi/error.h>

#include <cstring>
#include <string>
#include <vector>

#include "device.h"
#include "error.h"
#include "library.h"

namespace tvm_edge::opencl {
namespace {

void CheckCopy(cl_int status, Device* device, const char* direction, size_t bytes) {
  if (status == CL_SUCCESS) return;
  Fail(status, device, "copying " + std::to_string(bytes) + " bytes " + direction);
}

}  // namespace

char* End::host() const {
  // A block with a view belongs to the host: the device would read what was there before.
  const bool svm = device->memory_kind == MemoryKind::kSVMFine && place.block->svm != nullptr;
  char* base = svm ? static_cast<char*>(place.block->svm) : device->memory.HostAddress(place.block);
  return base == nullptr ? nullptr : base + place.offset;
}

End FindEnd(Device* device, const void* data, size_t offset, size_t bytes, const char* what) {
  const Place place = device->memory.Find(static_cast<const char*>(data) + offset, what);
  if (place.offset + bytes > place.block->bytes) {
    TVM_FFI_THROW(ValueError) << what << " of " << bytes << " bytes ends after its memory of "
                              << place.block->bytes << " bytes";
  }
  return {device, place};
}

void CopyIn(Stream* stream, const void* from, const End& to, size_t bytes) {
  if (char* host = to.host()) {
    stream->Finish();
    std::memcpy(host, from, bytes);
    return;
  }
  const cl_int status =
      stream->Submit("copy in", false, [&](cl_command_queue queue, cl_event* event) {
        if (to.place.block->svm != nullptr) {
          return cl().clEnqueueSVMMemcpy(queue, CL_TRUE, to.svm(), from, bytes, 0, nullptr, event);
        }
        return cl().clEnqueueWriteBuffer(queue, to.buffer(), CL_TRUE, to.place.offset, bytes, from,
                                         0, nullptr, event);
      });
  CheckCopy(status, to.device, "to the device", bytes);
}

void CopyOut(Stream* stream, const End& from, void* to, size_t bytes, Event* done) {
  if (const char* host = from.host()) {
    stream->Finish();
    std::memcpy(to, host, bytes);
    return;
  }
  const cl_uint wait = done == nullptr ? CL_TRUE : 0;
  const auto enqueue = [&](cl_command_queue queue, cl_event* event) {
    if (from.place.block->svm != nullptr) {
      return cl().clEnqueueSVMMemcpy(queue, wait, to, from.svm(), bytes, 0, nullptr, event);
    }
    return cl().clEnqueueReadBuffer(queue, from.buffer(), wait, from.place.offset, bytes, to, 0,
                                    nullptr, event);
  };
  const cl_int status = stream->Submit("copy out", false, enqueue, done);
  CheckCopy(status, from.device, "from the device", bytes);
}

void CopyWithin(Stream* stream, const End& from, const End& to, size_t bytes) {
  Memory& memory = from.device->memory;
  if (memory.HostAddress(from.place.block) != nullptr) {
    stream->Finish();
    CopyIn(stream, from.host(), to, bytes);
    return;
  }
  if (memory.HostAddress(to.place.block) != nullptr) {
    CopyOut(stream, from, to.host(), bytes);
    return;
  }
  if ((from.place.block->svm == nullptr) != (to.place.block->svm == nullptr)) {
    std::vector<char> staging(bytes);  // OpenCL has no copy between a buffer and shared memory
    CopyOut(stream, from, staging.data(), bytes);
    CopyIn(stream, staging.data(), to, bytes);
    return;
  }
  const cl_int status = stream->Submit("copy", false, [&](cl_command_queue queue, cl_event* event) {
    if (from.place.block->svm != nullptr) {
      return cl().clEnqueueSVMMemcpy(queue, 0, to.svm(), from.svm(), bytes, 0, nullptr, event);
    }
    return cl().clEnqueueCopyBuffer(queue, from.buffer(), to.buffer(), from.place.offset,
                                    to.place.offset, bytes, 0, nullptr, event);
  });
  CheckCopy(status, from.device, "within the device", bytes);
}

}  // namespace tvm_edge::opencl
