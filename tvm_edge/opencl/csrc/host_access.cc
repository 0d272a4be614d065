#include "host_access.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/memory/memory_manager.h>
#include <tvm/runtime/tensor.h>

#include <map>
#include <mutex>
#include <utility>

#include "command_buffer.h"
#include "copy.h"
#include "device.h"
#include "error.h"
#include "library.h"

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
namespace {

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

/*! \brief The device of a tensor that the host reads or writes. */
Device* DeviceOf(const ffi::Tensor& tensor, const char* what) {
  if (tensor.device().device_type != kDLOpenCL) {
    TVM_FFI_THROW(ValueError) << what << " takes an OpenCL tensor";
  }
  if (!tensor.IsContiguous()) TVM_FFI_THROW(ValueError) << what << " takes a contiguous tensor";
  RefuseWhileRecording("A read or write by the host");
  Device* device = GetDevice(tensor.device().device_id);
  device->CheckUsable();
  return device;
}

End FindTensor(Device* device, const ffi::Tensor& tensor, const char* what) {
  return FindEnd(device, tensor.GetDLTensorPtr()->data, tensor.byte_offset(),
                 ffi::GetDataSize(tensor), what);
}

/*! \brief A tensor for the host, and the event that says when it has its values, if one does. */
struct Seen {
  ffi::Tensor tensor;
  Event ready;
};

ffi::Tensor Shared(const ffi::Tensor& tensor, const End& end, char* host, bool mapped) {
  return ffi::Tensor::FromNDAlloc(SharedMemory(tensor, end.device, end.place.block, host, mapped),
                                  tensor.shape(), tensor.dtype(), kHost);
}

/*!
 * \brief What an OpenCL tensor holds, for the host.
 * \param pending Whether it may be so only when `ready` is.
 */
Seen Read(const ffi::Tensor& tensor, const char* what, bool pending) {
  Device* device = DeviceOf(tensor, what);
  Event ready;
  Event* done = pending ? &ready : nullptr;
  const size_t bytes = ffi::GetDataSize(tensor);
  if (bytes == 0) return {NewOnHost(tensor), nullptr};
  const End end = FindTensor(device, tensor, "A tensor that the host reads");
  if (char* host = device->memory.MapForReading(end.place, bytes, done)) {
    ffi::Tensor view = Shared(tensor, end, host, /*mapped=*/true);
    if (IsAlignedForHost(host)) return {std::move(view), std::move(ready)};
  }
  ffi::Tensor copy = NewOnHost(tensor);
  Stream* stream = device->streams.Get(nullptr);
  device->streams.FinishOthers(stream);
  device->copied_out.fetch_add(bytes, std::memory_order_relaxed);
  CopyOut(stream, end, copy.GetDLTensorPtr()->data, bytes, done);
  if (pending) stream->Flush();
  return {std::move(copy), std::move(ready)};
}

/*! \brief Where the host may write an OpenCL tensor that the device uses no more; or elsewhere. */
ffi::Tensor Writable(const ffi::Tensor& tensor, const End& end) {
  if (end.device == nullptr) return NewOnHost(tensor);
  return Shared(tensor, end, end.svm(), /*mapped=*/false);
}

/*! \brief The place of a tensor that the host may write at any time; else one without a device. */
End WritablePlace(const ffi::Tensor& tensor, const char* what) {
  Device* device = DeviceOf(tensor, what);
  if (device->memory_kind == MemoryKind::kSVMFine && ffi::GetDataSize(tensor) > 0) {
    const End end = FindTensor(device, tensor, "A tensor that the host writes");
    if (IsAlignedForHost(end.svm())) return end;
  }
  return {nullptr, {}};
}

/*! \brief The stream on which tensors of another API's device are read; never freed. */
TVMStreamHandle ReadStream(tvm::runtime::DeviceAPI* api, DLDevice device) {
  static std::mutex mutex;
  static auto* streams = new std::map<std::pair<int, int>, TVMStreamHandle>();
  std::lock_guard<std::mutex> lock(mutex);
  auto [found, made] = streams->try_emplace({device.device_type, device.device_id}, nullptr);
  if (made) found->second = api->CreateStream(device);
  return found->second;
}

/*! \brief A read or write by the host that has begun. */
class Pending : public ffi::Object {
 public:
  Pending(ffi::Tensor tensor, ffi::Optional<ffi::Tensor> seen, Event ready, End end = {nullptr, {}})
      : tensor(std::move(tensor)), seen(std::move(seen)), ready(std::move(ready)), end(end) {}
  ~Pending() {
    // The driver may be writing into `seen`.
    if (ready != nullptr && !Forked()) {
      const cl_event event = ready.get();
      cl().clWaitForEvents(1, &event);
    }
  }

  void Wait(Device* device, const char* what) {
    const Event event = std::exchange(ready, nullptr);
    if (event == nullptr) return;
    const cl_event raw = event.get();
    Check(cl().clWaitForEvents(1, &raw), device, what);
  }

  ffi::Tensor tensor;               // of the device; alive until the access ends
  ffi::Optional<ffi::Tensor> seen;  // by the host, of an OpenCL tensor that it reads
  Event ready;                      // null once it was waited for
  End end;                          // what the host writes, without a device if elsewhere

  TVM_FFI_DECLARE_OBJECT_INFO("tvm_edge.PendingAccess", Pending, ffi::Object);
};

class PendingRead final : public Pending {
 public:
  using Pending::Pending;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_edge.PendingRead", PendingRead, Pending);
};

class PendingWrite final : public Pending {
 public:
  using Pending::Pending;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_edge.PendingWrite", PendingWrite, Pending);
};

template <typename Kind>
Kind* Started(const ffi::ObjectRef& started, const char* what, const char* by) {
  auto* pending = const_cast<Kind*>(started.as<Kind>());
  if (pending == nullptr) TVM_FFI_THROW(TypeError) << what << " takes what " << by << " returned";
  return pending;
}

}  // namespace

ffi::Tensor ReadOnHost(const ffi::Tensor& tensor) {
  return Read(tensor, "read_on_host", /*pending=*/false).tensor;
}

ffi::Tensor WriteOnHost(const ffi::Tensor& tensor) {
  const End end = WritablePlace(tensor, "write_on_host");
  // The memory may have been another tensor's, which kernels still read.
  if (end.device != nullptr) end.device->streams.FinishAll();
  return Writable(tensor, end);
}

void HandOver(const ffi::Tensor& written, const ffi::Tensor& tensor) {
  DeviceOf(tensor, "hand_over");
  const auto address = [](const ffi::Tensor& each) {
    return static_cast<char*>(each.GetDLTensorPtr()->data) + each.byte_offset();
  };
  // An address of the host is none of a device whose memory the host does not share.
  if (written.device().device_type == kDLCPU && address(written) == address(tensor)) return;
  tvm::runtime::Tensor::CopyFromTo(written.GetDLTensorPtr(),
                                   const_cast<DLTensor*>(tensor.GetDLTensorPtr()));
}

ffi::ObjectRef StartRead(const ffi::Tensor& tensor) {
  const DLDevice device = tensor.device();
  if (device.device_type == kDLOpenCL) {
    Seen seen = Read(tensor, "start_read", /*pending=*/true);
    return ffi::ObjectRef(
        ffi::make_object<PendingRead>(tensor, std::move(seen.tensor), std::move(seen.ready)));
  }
  if (device.device_type == kDLCPU) {
    TVM_FFI_THROW(ValueError) << "start_read takes a tensor of a GPU";
  }
  auto* api = tvm::runtime::DeviceAPI::Get(device);
  api->SyncStreamFromTo(device, TVMFFIEnvGetStream(device.device_type, device.device_id),
                        ReadStream(api, device));
  return ffi::ObjectRef(ffi::make_object<PendingRead>(tensor, std::nullopt, nullptr));
}

ffi::Tensor FinishRead(const ffi::ObjectRef& started) {
  auto* read = Started<PendingRead>(started, "finish_read", "start_read");
  const DLDevice device = read->tensor.device();
  if (read->seen.has_value()) {
    read->Wait(GetDevice(device.device_id), "waiting for a tensor that the host reads");
    return *read->seen;
  }
  ffi::Tensor copy = NewOnHost(read->tensor);
  if (ffi::GetDataSize(copy) == 0) return copy;
  auto* api = tvm::runtime::DeviceAPI::Get(device);
  TVMStreamHandle stream = ReadStream(api, device);
  api->CopyDataFromTo(const_cast<DLTensor*>(read->tensor.GetDLTensorPtr()),
                      const_cast<DLTensor*>(copy.GetDLTensorPtr()), stream);
  api->StreamSync(device, stream);
  return copy;
}

ffi::ObjectRef StartWrite(const ffi::Tensor& tensor) {
  const End end = WritablePlace(tensor, "start_write");
  Event ready;
  if (end.device != nullptr) {
    Stream* stream = end.device->streams.Get(nullptr);
    end.device->streams.FinishOthers(stream);
    ready = stream->MarkNow();
  }
  return ffi::ObjectRef(
      ffi::make_object<PendingWrite>(tensor, std::nullopt, std::move(ready), end));
}

ffi::Tensor FinishWrite(const ffi::ObjectRef& started) {
  auto* write = Started<PendingWrite>(started, "finish_write", "start_write");
  write->Wait(write->end.device, "waiting for memory that the host writes");
  return Writable(write->tensor, write->end);
}

}  // namespace tvm_edge::opencl
