#include "device_api.h"

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "command_buffer.h"
#include "device.h"
#include "error.h"
#include "library.h"
#include "module.h"

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
using tvm::runtime::DeviceAttrKind;

namespace {

/*! \brief One end of a copy on a device. */
struct End {
  Device* device;
  Place place;
  cl_mem buffer() const { return place.block->mem; }
  char* svm() const { return static_cast<char*>(place.block->svm) + place.offset; }
  /*! \brief Where the host may read and write it once the stream is done; null if nowhere. */
  char* host() const {
    // A block with a view belongs to the host: the device would read what was there before.
    char* base = device->memory_kind == MemoryKind::kSVMFine
                     ? static_cast<char*>(place.block->svm)
                     : device->memory.HostAddress(place.block);
    return base == nullptr ? nullptr : base + place.offset;
  }
};

End FindEnd(Device* device, const void* data, size_t offset, size_t bytes, const char* what) {
  const Place place = device->memory.Find(static_cast<const char*>(data) + offset, what);
  if (place.offset + bytes > place.block->bytes) {
    TVM_FFI_THROW(ValueError) << what << " of " << bytes << " bytes ends after its memory of "
                              << place.block->bytes << " bytes";
  }
  return {device, place};
}

void CheckCopy(cl_int status, Device* device, const char* direction, size_t bytes) {
  if (status == CL_SUCCESS) return;
  Fail(status, device, "copying " + std::to_string(bytes) + " bytes " + direction);
}

/*! \brief Host memory to a device; returns when the host memory may change, as callers expect. */
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

void CopyOut(Stream* stream, const End& from, void* to, size_t bytes) {
  if (const char* host = from.host()) {
    stream->Finish();
    std::memcpy(to, host, bytes);
    return;
  }
  const cl_int status =
      stream->Submit("copy out", false, [&](cl_command_queue queue, cl_event* event) {
        if (from.place.block->svm != nullptr) {
          return cl().clEnqueueSVMMemcpy(queue, CL_TRUE, to, from.svm(), bytes, 0, nullptr, event);
        }
        return cl().clEnqueueReadBuffer(queue, from.buffer(), CL_TRUE, from.place.offset, bytes,
                                        to, 0, nullptr, event);
      });
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
  const cl_int status =
      stream->Submit("copy", false, [&](cl_command_queue queue, cl_event* event) {
        if (from.place.block->svm != nullptr) {
          return cl().clEnqueueSVMMemcpy(queue, 0, to.svm(), from.svm(), bytes, 0, nullptr, event);
        }
        return cl().clEnqueueCopyBuffer(queue, from.buffer(), to.buffer(), from.place.offset,
                                        to.place.offset, bytes, 0, nullptr, event);
      });
  CheckCopy(status, from.device, "within the device", bytes);
}

class DeviceAPI final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(tvm::Device dev) final { ThreadDevice() = dev.device_id; }

  void GetAttr(tvm::Device dev, DeviceAttrKind kind, ffi::Any* rv) final {
    const Devices& all = AllDevices();
    const bool exists = dev.device_id >= 0 && dev.device_id < static_cast<int>(all.chosen.size());
    if (kind == DeviceAttrKind::kExist) {
      *rv = exists;
      return;
    }
    if (!exists) return;
    const DeviceInfo& info = all.chosen[dev.device_id]->info;
    switch (kind) {
      case DeviceAttrKind::kExist:
        break;
      case DeviceAttrKind::kMaxThreadsPerBlock:
        *rv = static_cast<int64_t>(info.max_work_group_size);
        break;
      case DeviceAttrKind::kWarpSize:
        // TVM leaves barriers out, or puts them into branches, for threads of one warp; OpenCL
        // promises nothing about sub-groups that a kernel does not ask for.
        *rv = int64_t{1};
        break;
      case DeviceAttrKind::kMaxSharedMemoryPerBlock:
        *rv = static_cast<int64_t>(info.local_memory);
        break;
      case DeviceAttrKind::kComputeVersion:
        *rv = ffi::String(std::to_string(info.version_number / 100) + "." +
                          std::to_string(info.version_number % 100 / 10));
        break;
      case DeviceAttrKind::kDeviceName:
        *rv = ffi::String(info.name);
        break;
      case DeviceAttrKind::kMaxClockRate:
        *rv = static_cast<int64_t>(info.clock_mhz) * 1000;  // kHz, as on CUDA
        break;
      case DeviceAttrKind::kMultiProcessorCount:
        *rv = static_cast<int64_t>(info.compute_units);
        break;
      case DeviceAttrKind::kMaxThreadDimensions: {
        std::ostringstream sizes;  // a JSON list, as TVM's Python expects
        for (size_t i = 0; i < info.max_work_item_sizes.size(); ++i) {
          sizes << (i == 0 ? "[" : ", ") << info.max_work_item_sizes[i];
        }
        *rv = ffi::String(sizes.str() + "]");
        break;
      }
      case DeviceAttrKind::kMaxRegistersPerBlock:
        *rv = static_cast<int64_t>(info.registers);
        break;
      case DeviceAttrKind::kApiVersion:
        *rv = static_cast<int64_t>(info.version_number);
        break;
      case DeviceAttrKind::kDriverVersion:
        *rv = ffi::String(info.driver);
        break;
      case DeviceAttrKind::kL2CacheSizeBytes:
        *rv = static_cast<int64_t>(info.cache_size);
        break;
      case DeviceAttrKind::kTotalGlobalMemory:
        *rv = static_cast<int64_t>(info.global_memory);
        break;
      case DeviceAttrKind::kAvailableGlobalMemory: {
        // OpenCL does not tell what other processes use.
        const Device* device = OpenedDevice(dev.device_id);
        const size_t used = device == nullptr ? 0 : device->memory.stats().in_use;
        *rv = static_cast<int64_t>(info.global_memory) - static_cast<int64_t>(used);
        break;
      }
      case DeviceAttrKind::kGcnArch:
      case DeviceAttrKind::kImagePitchAlignment:
        break;  // not of this kind of device; images are not used
    }
  }

  void GetTargetProperty(tvm::Device dev, const std::string& property, ffi::Any* rv) final {
    const DeviceInfo& info = GetDevice(dev.device_id)->info;
    if (property == "max_threads_per_block" || property == "max_num_threads") {
      *rv = static_cast<int64_t>(info.max_work_group_size);
    } else if (property == "max_shared_memory_per_block") {
      *rv = static_cast<int64_t>(info.local_memory);
    } else if (property == "thread_warp_size") {
      *rv = int64_t{1};  // see kWarpSize
    } else if (property == "max_function_args") {
      *rv = static_cast<int64_t>(info.parameter_bytes / sizeof(void*));
    }
  }

  void* AllocDataSpace(tvm::Device dev, size_t bytes, size_t, DLDataType) final {
    RefuseWhileRecording("An allocation");  // its owner frees it before the replay
    return GetDevice(dev.device_id)->memory.Allocate(bytes);
  }

  void FreeDataSpace(tvm::Device dev, void* data) final {
    // In a fork the memory is the parent's; and nothing may throw out of a destructor.
    Device* device = Forked() ? nullptr : OpenedDevice(dev.device_id);
    if (device != nullptr) device->memory.Free(data);
  }

  TVMStreamHandle CreateStream(tvm::Device dev) final {
    return GetDevice(dev.device_id)->streams.Create();
  }

  void FreeStream(tvm::Device dev, TVMStreamHandle stream) final {
    Device* device = Forked() ? nullptr : OpenedDevice(dev.device_id);
    if (device != nullptr) device->streams.Destroy(stream);
  }

  /*! \brief Wait for a stream; for all of the device's where none is named, as on CUDA. */
  void StreamSync(tvm::Device dev, TVMStreamHandle stream) final {
    RefuseWhileRecording("A wait for the device");
    Device* device = GetDevice(dev.device_id);
    device->CheckUsable();
    if (stream == nullptr) {
      device->streams.FinishAll();
    } else {
      device->streams.Get(stream)->Finish();
    }
  }

  void SyncStreamFromTo(tvm::Device dev, TVMStreamHandle from, TVMStreamHandle to) final {
    Device* device = GetDevice(dev.device_id);
    device->streams.Get(to)->WaitFor(device->streams.Get(from));
  }

  bool SupportsDevicePointerArithmeticsOnHost() final { return true; }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, tvm::Device from_dev, tvm::Device to_dev, DLDataType,
                      TVMStreamHandle stream_handle) final {
    if (bytes == 0) return;
    RefuseWhileRecording("A copy");
    const bool in = from_dev.device_type != kDLOpenCL;
    const bool out = to_dev.device_type != kDLOpenCL;
    Device* device = GetDevice(in ? to_dev.device_id : from_dev.device_id);
    device->CheckUsable();
    if (stream_handle == nullptr) stream_handle = TVMFFIEnvGetStream(kDLOpenCL, device->index);
    Stream* stream = device->streams.Get(stream_handle);
    // Who copies without naming a stream expects the results of all of them.
    device->streams.FinishOthers(stream);

    const auto* host_from = static_cast<const char*>(from) + from_offset;
    auto* host_to = static_cast<char*>(to) + to_offset;
    if (in) device->copied_in.fetch_add(bytes, std::memory_order_relaxed);
    if (out) device->copied_out.fetch_add(bytes, std::memory_order_relaxed);
    if (in) {
      CopyIn(stream, host_from,
             FindEnd(device, to, to_offset, bytes, "The target of a copy"), bytes);
      return;
    }
    const End source = FindEnd(device, from, from_offset, bytes, "The source of a copy");
    if (out) {
      CopyOut(stream, source, host_to, bytes);
      return;
    }
    Device* other = GetDevice(to_dev.device_id);
    const End target = FindEnd(other, to, to_offset, bytes, "The target of a copy");
    if (other == device) {
      CopyWithin(stream, source, target, bytes);
      return;
    }
    Stream* other_stream = other->streams.Get(TVMFFIEnvGetStream(kDLOpenCL, other->index));
    other->streams.FinishOthers(other_stream);
    std::vector<char> staging(bytes);  // devices have contexts of their own
    CopyOut(stream, source, staging.data(), bytes);
    CopyIn(other_stream, staging.data(), target, bytes);
  }
};

/*! \brief Time between two markers in the calling thread's stream. */
class Timer final : public tvm::runtime::TimerNode {
 public:
  explicit Timer(tvm::Device dev)
      : stream_(GetDevice(dev.device_id)
                    ->streams.Get(TVMFFIEnvGetStream(kDLOpenCL, dev.device_id))
                    ->shared_from_this()) {}
  ~Timer() override { stream_->CancelTiming(&span_); }

  void Start() final { stream_->StartTiming(&span_); }
  void Stop() final { stream_->StopTiming(&span_); }
  int64_t SyncAndGetElapsedNanos() final { return stream_->Elapsed(&span_); }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_edge.OpenCLTimer", Timer, tvm::runtime::TimerNode);

 private:
  std::shared_ptr<Stream> stream_;  // the user may free it meanwhile
  Stream::Span span_;
};

/*! \brief Holds a tensor's memory for the host, until the view goes. */
class HostMapping {
 public:
  explicit HostMapping(ffi::Tensor tensor) : tensor_(std::move(tensor)) {}

  void AllocData(DLTensor* view) {
    device_ = GetDevice(tensor_.device().device_id);
    device_->CheckUsable();
    const Place place =
        FindEnd(device_, tensor_.GetDLTensorPtr()->data, tensor_.byte_offset(),
                ffi::GetDataSize(tensor_), "A host view")
            .place;
    view->data = device_->memory.Map(place.block) + place.offset;
    block_ = place.block;
  }

  void FreeData(DLTensor*) {
    if (!Forked()) device_->memory.Unmap(block_);
  }

 private:
  ffi::Tensor tensor_;
  Device* device_ = nullptr;
  Allocation* block_ = nullptr;
};

/*! \brief Holds a tensor's memory while the host reads or writes it beside the device. */
class SharedMemory {
 public:
  SharedMemory(ffi::Tensor tensor, Device* device, Allocation* block, char* host, bool mapped)
      : tensor_(std::move(tensor)), device_(device), block_(block), host_(host), mapped_(mapped) {}

  void AllocData(DLTensor* view) { view->data = host_; }
  void FreeData(DLTensor*) {
    if (mapped_ && !Forked()) device_->memory.UnmapRead(block_, host_);
  }

 private:
  ffi::Tensor tensor_;
  Device* device_;
  Allocation* block_;
  char* host_;
  bool mapped_;
};

constexpr DLDevice kHost{kDLCPU, 0};

/*! \brief Whether compiled kernels of the CPU take a tensor at this address. */
bool IsAlignedForHost(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % tvm::runtime::kAllocAlignment == 0;
}

/*! \brief A CPU tensor of its own, from the pool that the virtual machine takes its from. */
ffi::Tensor NewOnHost(const ffi::Tensor& like) {
  using tvm::runtime::memory::AllocatorType;
  using tvm::runtime::memory::MemoryManager;
  return MemoryManager::GetOrCreateAllocator(kHost, AllocatorType::kPooled)
      ->Empty(ffi::Shape(like.shape()), like.dtype(), kHost);
}

/*! \brief The device of a tensor that crosses to the host or back. */
Device* CrossingDevice(const ffi::Tensor& tensor, const char* what) {
  if (tensor.device().device_type != kDLOpenCL) {
    TVM_FFI_THROW(ValueError) << what << " takes an OpenCL tensor";
  }
  if (!tensor.IsContiguous()) TVM_FFI_THROW(ValueError) << what << " takes a contiguous tensor";
  RefuseWhileRecording("A tensor that crosses to the host");
  Device* device = GetDevice(tensor.device().device_id);
  device->CheckUsable();
  return device;
}

End FindTensor(Device* device, const ffi::Tensor& tensor, const char* what) {
  return FindEnd(device, tensor.GetDLTensorPtr()->data, tensor.byte_offset(),
                 ffi::GetDataSize(tensor), what);
}

ffi::Tensor Shared(const ffi::Tensor& tensor, const End& end, char* host, bool mapped) {
  return ffi::Tensor::FromNDAlloc(
      SharedMemory(tensor, end.device, end.place.block, host, mapped), tensor.shape(),
      tensor.dtype(), kHost);
}

}  // namespace

tvm::runtime::DeviceAPI* OpenCLDeviceAPI() {
  static auto* api = new DeviceAPI();
  return api;
}

tvm::runtime::Timer CreateTimer(tvm::Device device) {
  return tvm::runtime::Timer(ffi::make_object<Timer>(device));
}

ffi::Tensor HostView(const ffi::Tensor& tensor) {
  if (tensor.device().device_type != kDLOpenCL) {
    TVM_FFI_THROW(ValueError) << "host_view takes an OpenCL tensor";
  }
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "host_view takes a contiguous tensor";
  }
  return ffi::Tensor::FromNDAlloc(HostMapping(tensor), tensor.shape(), tensor.dtype(),
                                  kHost);
}

ffi::Tensor ReadOnHost(const ffi::Tensor& tensor) {
  Device* device = CrossingDevice(tensor, "read_on_host");
  if (const size_t bytes = ffi::GetDataSize(tensor); bytes > 0) {
    const End end = FindTensor(device, tensor, "A tensor that the host reads");
    if (char* host = device->memory.MapForReading(end.place, bytes)) {
      ffi::Tensor view = Shared(tensor, end, host, /*mapped=*/true);
      if (IsAlignedForHost(host)) return view;
    }
  }
  ffi::Tensor copy = NewOnHost(tensor);
  tvm::runtime::Tensor::CopyFromTo(tensor.GetDLTensorPtr(),
                                   const_cast<DLTensor*>(copy.GetDLTensorPtr()));
  return copy;
}

ffi::Tensor WriteOnHost(const ffi::Tensor& tensor) {
  Device* device = CrossingDevice(tensor, "write_on_host");
  if (device->memory_kind == MemoryKind::kSVMFine && ffi::GetDataSize(tensor) > 0) {
    const End end = FindTensor(device, tensor, "A tensor that the host writes");
    if (IsAlignedForHost(end.svm())) {
      // The memory may have been another tensor's, which kernels still read.
      device->streams.FinishAll();
      return Shared(tensor, end, end.svm(), /*mapped=*/false);
    }
  }
  return NewOnHost(tensor);
}

void HandOver(const ffi::Tensor& written, const ffi::Tensor& tensor) {
  CrossingDevice(tensor, "hand_over");
  const auto address = [](const ffi::Tensor& each) {
    return static_cast<char*>(each.GetDLTensorPtr()->data) + each.byte_offset();
  };
  // An address of the host is none of a device whose memory the host does not share.
  if (written.device().device_type == kDLCPU && address(written) == address(tensor)) return;
  tvm::runtime::Tensor::CopyFromTo(written.GetDLTensorPtr(),
                                   const_cast<DLTensor*>(tensor.GetDLTensorPtr()));
}

}  // namespace tvm_edge::opencl
