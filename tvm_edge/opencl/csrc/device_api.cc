#include "device_api.h"

#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "command_buffer.h"
#include "copy.h"
#include "device.h"
#include "error.h"
#include "library.h"
#include "module.h"

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
using tvm::runtime::DeviceAttrKind;

namespace {

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
      CopyIn(stream, host_from, FindEnd(device, to, to_offset, bytes, "The target of a copy"),
             bytes);
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
    const Place place = FindEnd(device_, tensor_.GetDLTensorPtr()->data, tensor_.byte_offset(),
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
                                  DLDevice{kDLCPU, 0});
}

}  // namespace tvm_edge::opencl
