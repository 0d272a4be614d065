#include "memory.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <new>

#include "device.h"
#include "error.h"
#include "library.h"

namespace tvm_edge::opencl {
namespace {

// Blocks begin at multiples of this, as TVM's generated code asserts.
constexpr size_t kAlignment = 128;
// What the pool may keep from the driver; an eighth of small memories.
constexpr size_t kMaxPooled = size_t{256} << 20;

/*! \brief The size a request is rounded to, so that blocks fit later requests: at most 1/8 more. */
size_t SizeClass(size_t bytes) {
  size_t step = kAlignment;
  while (step * 16 < bytes) step *= 2;
  return std::max(step, (bytes + step - 1) / step * step);
}

}  // namespace

Allocation* Memory::Create(size_t bytes) {
  auto block = std::make_unique<Allocation>();
  block->bytes = bytes;
  cl_int status = CL_SUCCESS;
  switch (device_->memory_kind) {
    case MemoryKind::kSVMFine:
    case MemoryKind::kSVMCoarse: {
      const bool fine = device_->memory_kind == MemoryKind::kSVMFine;
      const cl_bitfield flags = CL_MEM_READ_WRITE | (fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0);
      block->svm = cl().clSVMAlloc(device_->context, flags, bytes, kAlignment);
      if (block->svm == nullptr) status = CL_MEM_OBJECT_ALLOCATION_FAILURE;
      break;
    }
    case MemoryKind::kMapped:
    case MemoryKind::kBuffer: {
      const bool mapped = device_->memory_kind == MemoryKind::kMapped;
      const cl_bitfield flags = CL_MEM_READ_WRITE | (mapped ? CL_MEM_ALLOC_HOST_PTR : 0);
      block->mem = cl().clCreateBuffer(device_->context, flags, bytes, nullptr, &status);
      break;
    }
  }
  if (status != CL_SUCCESS) {
    if (IsOutOfMemory(status) || status == CL_OUT_OF_RESOURCES) return nullptr;
    Fail(status, device_, "allocating " + std::to_string(bytes) + " bytes");
  }
  return block.release();
}

void Memory::DropSubBuffers(Allocation* block) noexcept {
  std::lock_guard<std::mutex> lock(block->mutex);
  if (block->sub_buffers.empty()) return;
  generation_.fetch_add(1, std::memory_order_relaxed);
  for (const auto& [offset, mem] : block->sub_buffers) cl().clReleaseMemObject(mem);
  block->sub_buffers.clear();
}

void Memory::Destroy(Allocation* block) noexcept {
  generation_.fetch_add(1, std::memory_order_relaxed);
  DropSubBuffers(block);
  if (block->mem != nullptr) cl().clReleaseMemObject(block->mem);
  if (block->svm != nullptr) cl().clSVMFree(device_->context, block->svm);
  delete block;
}

Allocation* Memory::TakePooled(size_t bytes) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  auto found = pool_.find(bytes);
  if (found == pool_.end() || found->second == nullptr) return nullptr;
  Allocation* block = found->second;
  found->second = std::exchange(block->next, nullptr);
  stats_.pooled -= bytes;
  stats_.in_use += bytes;
  return block;
}

/*! \brief A handle that means so many bytes from now on; with the lock held. */
uintptr_t Memory::NewHandle(size_t bytes) {
  const uintptr_t handle = next_handle_;
  // A gap, so that one past the end of a block is not the next one.
  next_handle_ += (bytes / kAlignment + 2) * kAlignment;
  return handle;
}

/*! \brief Count bytes as in use if the device has them; two threads do not get the same ones. */
bool Memory::Reserve(size_t bytes) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  const size_t total = device_->info.global_memory;
  const size_t taken = stats_.in_use + stats_.pooled;
  if (taken > total || bytes > total - taken) return false;
  stats_.in_use += bytes;
  return true;
}

void Memory::Unreserve(size_t bytes) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  stats_.in_use -= bytes;
}

/*! \brief Let addresses of a block be found, and let it be freed without memory for that. */
void Memory::Publish(Allocation* block, size_t bytes) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  pool_.try_emplace(bytes, nullptr);
  if (block->base == 0) {
    block->base =
        block->svm != nullptr ? reinterpret_cast<uintptr_t>(block->svm) : NewHandle(bytes);
  }
  blocks_[block->base] = block;
  stats_.peak = std::max(stats_.peak, stats_.in_use);
  ++stats_.live;
}

void* Memory::Allocate(size_t bytes) {
  device_->CheckUsable();
  if (bytes > SIZE_MAX / 2) FailAllocation(CL_INVALID_BUFFER_SIZE, device_, bytes);
  const size_t rounded = SizeClass(bytes);
  Allocation* block = TakePooled(rounded);
  // Some drivers promise more than there is and fail when a kernel runs.
  auto create = [&] {
    if (!Reserve(rounded)) return;
    try {
      block = Create(rounded);
    } catch (...) {
      Unreserve(rounded);
      throw;
    }
    if (block == nullptr) Unreserve(rounded);
  };
  if (block == nullptr) create();
  if (block == nullptr) {
    // The driver frees buffers when the commands that use them are done.
    device_->streams.FinishAll();
    Release();
    create();
  }
  if (block == nullptr) FailAllocation(CL_MEM_OBJECT_ALLOCATION_FAILURE, device_, bytes);
  try {
    Publish(block, rounded);
  } catch (const std::bad_alloc&) {
    Unreserve(rounded);
    Destroy(block);
    FailAllocation(CL_OUT_OF_HOST_MEMORY, device_, bytes);
  }
  return reinterpret_cast<void*>(block->base);
}

void Memory::Free(void* handle) noexcept {
  device_->streams.QuiesceForReuse();
  Allocation* block = nullptr;
  bool keep = false;
  {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto found = blocks_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == blocks_.end()) return;
    block = found->second;
    blocks_.erase(found);
    stats_.in_use -= block->bytes;
    --stats_.live;
    const size_t limit = std::min(kMaxPooled, static_cast<size_t>(device_->info.global_memory / 8));
    keep = !device_->lost && stats_.pooled + block->bytes <= limit;
    if (keep) stats_.pooled += block->bytes;
  }
  DropSubBuffers(block);
  if (keep) {
    // A number is not given twice: who still holds the old one must not reach the new tensor.
    if (block->svm == nullptr) block->base = 0;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    Allocation*& first = pool_.find(block->bytes)->second;
    block->next = std::exchange(first, block);
    return;
  }
  if (block->svm != nullptr) device_->streams.QuiesceAll();  // clSVMFree does not wait
  Destroy(block);
}

Place Memory::Find(const void* address, const char* what) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(address);
  {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto next = blocks_.upper_bound(value);
    if (next != blocks_.begin()) {
      Allocation* block = std::prev(next)->second;
      if (value - block->base < block->bytes) return {block, value - block->base};
    }
  }
  TVM_FFI_THROW(ValueError) << what << " at address " << address
                            << " is no memory of OpenCL device " << device_->Describe()
                            << ": it was freed, or belongs to another device";
  TVM_FFI_UNREACHABLE();
}

cl_mem Memory::BufferAt(const Place& place, const char* what) {
  if (place.offset == 0) return place.block->mem;
  std::lock_guard<std::mutex> lock(place.block->mutex);
  cl_mem& sub_buffer = place.block->sub_buffers[place.offset];
  if (sub_buffer != nullptr) return sub_buffer;
  if (place.offset % device_->info.address_alignment != 0) {
    place.block->sub_buffers.erase(place.offset);
    TVM_FFI_THROW(ValueError) << what << " begins " << place.offset
                              << " bytes into its memory; OpenCL device " << device_->Describe()
                              << " needs a multiple of " << device_->info.address_alignment
                              << ": copy the view into a tensor of its own";
  }
  const cl_buffer_region region{place.offset, place.block->bytes - place.offset};
  cl_int status = CL_SUCCESS;
  cl_mem created = cl().clCreateSubBuffer(place.block->mem, CL_MEM_READ_WRITE,
                                          CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
  if (status != CL_SUCCESS) {
    place.block->sub_buffers.erase(place.offset);
    Fail(status, device_, std::string("making a view for ") + what);
  }
  sub_buffer = created;
  return created;
}

char* Memory::Map(Allocation* block) {
  std::lock_guard<std::mutex> lock(block->mutex);
  if (block->host == nullptr) {
    if (block->borrowed) {
      TVM_FFI_THROW(ValueError) << "The memory is a buffer of another library; copy the tensor "
                                << "with .numpy(), or map the buffer there";
    }
    device_->streams.FinishAll();
    Stream* stream = device_->streams.Get(nullptr);
    cl_int status = CL_SUCCESS;
    switch (device_->memory_kind) {
      case MemoryKind::kSVMFine:
        block->host = static_cast<char*>(block->svm);
        break;
      case MemoryKind::kSVMCoarse:
        status = stream->Submit("map", false, [&](cl_command_queue queue, cl_event* event) {
          return cl().clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, block->svm,
                                      block->bytes, 0, nullptr, event);
        });
        if (status == CL_SUCCESS) block->host = static_cast<char*>(block->svm);
        break;
      case MemoryKind::kMapped:
        stream->Submit("map", false, [&](cl_command_queue queue, cl_event* event) {
          block->host = static_cast<char*>(
              cl().clEnqueueMapBuffer(queue, block->mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                      block->bytes, 0, nullptr, event, &status));
          return status;
        });
        break;
      case MemoryKind::kBuffer:
        TVM_FFI_THROW(ValueError) << "OpenCL device " << device_->Describe()
                                  << " has memory of its own, which the host cannot view; copy "
                                     "the tensor with .numpy()";
    }
    Check(status, device_, "mapping a tensor for the host");
  }
  block->views.fetch_add(1, std::memory_order_relaxed);
  return block->host;
}

void Memory::Unmap(Allocation* block) noexcept {
  std::lock_guard<std::mutex> lock(block->mutex);
  if (block->views.load(std::memory_order_relaxed) == 1 && !block->borrowed) {
    if (device_->memory_kind != MemoryKind::kSVMFine) {
      // A failure shows at the next use of the queue: this is called by destructors.
      Stream* stream = device_->streams.Get(nullptr);
      stream->Submit("unmap", false, [&](cl_command_queue queue, cl_event* event) {
        if (block->svm != nullptr) {
          return cl().clEnqueueSVMUnmap(queue, block->svm, 0, nullptr, event);
        }
        return cl().clEnqueueUnmapMemObject(queue, block->mem, block->host, 0, nullptr, event);
      });
      stream->TryFinish();  // before a launch on another stream
    }
    block->host = nullptr;
  }
  block->views.fetch_sub(1, std::memory_order_relaxed);
}

char* Memory::HostAddress(Allocation* block) {
  std::lock_guard<std::mutex> lock(block->mutex);
  return block->host;
}

char* Memory::MapForReading(const Place& place, size_t bytes, Event* done) {
  Allocation* block = place.block;
  const MemoryKind kind = device_->memory_kind;
  if (kind == MemoryKind::kBuffer || block->borrowed) return nullptr;
  Stream* stream = device_->streams.Get(nullptr);
  device_->streams.FinishOthers(stream);
  if (kind == MemoryKind::kSVMFine) {
    if (done != nullptr) {
      *done = stream->MarkNow();
    } else {
      stream->Finish();
    }
    return static_cast<char*>(block->svm) + place.offset;
  }
  std::lock_guard<std::mutex> lock(block->mutex);
  if (block->host != nullptr) return nullptr;  // it may be written through that view
  char* host = nullptr;
  cl_int status = CL_SUCCESS;
  const cl_uint wait = done == nullptr ? CL_TRUE : 0;
  if (kind == MemoryKind::kMapped) {
    const auto map = [&](cl_command_queue queue, cl_event* event) {
      host = static_cast<char*>(cl().clEnqueueMapBuffer(
          queue, block->mem, wait, CL_MAP_READ, place.offset, bytes, 0, nullptr, event, &status));
      return status;
    };
    stream->Submit("map", false, map, done);
  } else {
    // OpenCL does not say what it means to map shared virtual memory twice.
    if (block->read) return nullptr;
    char* address = static_cast<char*>(block->svm) + place.offset;
    const auto map = [&](cl_command_queue queue, cl_event* event) {
      return cl().clEnqueueSVMMap(queue, wait, CL_MAP_READ, address, bytes, 0, nullptr, event);
    };
    status = stream->Submit("map", false, map, done);
    if (status == CL_SUCCESS) {
      block->read = true;
      host = address;
    }
  }
  Check(status, device_, "mapping a tensor for the host to read");
  if (done != nullptr) stream->Flush();
  return host;
}

void Memory::UnmapRead(Allocation* block, char* host) noexcept {
  if (device_->memory_kind == MemoryKind::kSVMFine) return;
  // A failure shows at the next use of the queue: this is called by destructors.
  std::lock_guard<std::mutex> lock(block->mutex);
  block->read = false;
  device_->streams.Get(nullptr)->Submit(
      "unmap", false, [&](cl_command_queue queue, cl_event* event) {
        if (block->svm != nullptr) return cl().clEnqueueSVMUnmap(queue, host, 0, nullptr, event);
        return cl().clEnqueueUnmapMemObject(queue, block->mem, host, 0, nullptr, event);
      });
  device_->streams.QuiesceForReuse();  // before a launch on another stream
}

size_t Memory::Release() {
  Allocation* released = nullptr;
  size_t released_bytes = 0;
  {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    for (auto& [bytes, first] : pool_) {
      while (first != nullptr) {
        Allocation* block = std::exchange(first, first->next);
        block->next = std::exchange(released, block);
        released_bytes += bytes;
      }
    }
    // Those that are on their way into the pool are counted, and not in it yet.
    stats_.pooled -= released_bytes;
  }
  if (released != nullptr) device_->streams.QuiesceAll();
  while (released != nullptr) Destroy(std::exchange(released, released->next));
  return released_bytes;
}

Memory::Stats Memory::stats() const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return stats_;
}

void Memory::ResetPeak() {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  stats_.peak = stats_.in_use;
}

}  // namespace tvm_edge::opencl
