#include "device.h"

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "error.h"
#include "text.h"

namespace tvm_edge {
namespace {

template <typename... Arguments>
ffi::Any OpenCL(const char* name, Arguments&&... arguments) {
  return ffi::Function::GetGlobalRequired("tvm_edge.opencl." + std::string(name))(
      std::forward<Arguments>(arguments)...);
}

/*! \brief All cores that the process may use; there is one, always. */
class CpuDevice : public Device {
 public:
  explicit CpuDevice(int64_t) : Device("llvm", "a CPU", kDLCPU, 0) {}
  bool is_host() const override { return true; }
  void Open() const override {}
  std::optional<Tensor> Share(const Tensor& tensor) const override { return tensor; }
  // Kernels are done when the call that launched them returns.
  void Sync() const override {}
};

/*! \brief A device of the OpenCL runtime; a kernel may still be running when a call returns. */
class OpenCLDevice : public Device {
 public:
  explicit OpenCLDevice(int64_t index)
      : Device("opencl", "a GPU with its OpenCL driver", kDLOpenCL, index) {}

  void Build(const ffi::Module& module) const override { OpenCL("build", module, id()); }
  void LoadPrograms(const std::string& programs) const override {
    OpenCL("load_programs", ffi::Bytes(programs));
  }
  std::vector<std::string> TooLargeKernels(const ffi::Module& module) const override {
    std::vector<std::string> names;
    for (const auto& name : OpenCL("too_large_kernels", module, id())
                                .cast<ffi::Array<ffi::String>>()) {
      names.push_back(name);
    }
    return names;
  }
  std::optional<Tensor> Share(const Tensor& tensor) const override {
    auto shared = OpenCL("borrow", tensor, id()).cast<ffi::Optional<ffi::Tensor>>();
    if (!shared) return std::nullopt;
    return Tensor(*shared);
  }
  bool HostWritesAtAnyTime() const override {
    const auto info = OpenCL("device_info", id()).cast<ffi::Map<ffi::String, ffi::Any>>();
    return info["memory"].cast<ffi::String>() == "svm-fine";
  }
  void ReleaseMemory() const override { OpenCL("release_memory", id()); }
  bool ReplaysLaunches() const override {
    const auto state = OpenCL("command_buffers", id()).cast<ffi::Map<ffi::String, ffi::Any>>();
    return state["missing"].cast<ffi::String>().size() == 0;
  }
  std::string RecordingFailure() const override {
    return OpenCL("recording_failure", id()).cast<ffi::String>();
  }

 private:
  int64_t id() const { return handle().device_id; }
};

/*!
 * \brief A CUDA device: everything runs on the default stream, and is done when a call returns.
 *
 * TVM's own copies always go to that stream, and producers of inputs are asked to be ready for it.
 */
class CudaDevice : public Device {
 public:
  explicit CudaDevice(int64_t index)
      : Device("cuda", "an NVIDIA GPU with its driver", kDLCUDA, index) {}

  bool may_capture() const override { return true; }
  void Open() const override {
    LoadRuntime();
    Device::Open();
  }
  std::optional<DLDevice> PinnedMemory() const override {
    return DLDevice{kDLCUDAHost, handle().device_id};
  }
  // A consumer's stream knows nothing of ours, nor does the allocator of a producer that frees an
  // input next.
  void FinishRun() const override { Sync(); }

 private:
  /*! \brief Load TVM's CUDA library, which lies beside its runtime, where nobody has. */
  static void LoadRuntime() {
    if (ffi::Function::GetGlobal("device_api.cuda").has_value()) return;
    Dl_info runtime;
    if (!dladdr(reinterpret_cast<void*>(&tvm::runtime::DeviceAPI::Get), &runtime)) return;
    const std::string beside(runtime.dli_fname);
    const std::string path =
        beside.substr(0, beside.rfind('/') + 1) + "libtvm_runtime_cuda.so";
    if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      Log("info", std::string("TVM's CUDA runtime does not load: ") + dlerror());
    }
  }
};

struct Kind {
  const char* kind;
  std::vector<std::string> names;
};
const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds{
      {"llvm", {"llvm", "cpu"}}, {"opencl", {"opencl"}}, {"cuda", {"cuda"}}};
  return kinds;
}

}  // namespace

Device::Device(std::string kind, std::string needs, DLDeviceType type, int64_t index)
    : kind_(std::move(kind)),
      needs_(std::move(needs)),
      index_(index),
      handle_{type, static_cast<int32_t>(
                        std::min<int64_t>(index, std::numeric_limits<int32_t>::max()))} {}

std::unique_ptr<Device> Device::Make(const std::string& kind, int64_t index) {
  if (kind == "opencl") return std::make_unique<OpenCLDevice>(index);
  if (kind == "cuda") return std::make_unique<CudaDevice>(index);
  return std::make_unique<CpuDevice>(index);
}

bool Device::Exists() const {
  if (index_ > std::numeric_limits<int32_t>::max()) return false;
  auto* api = tvm::runtime::DeviceAPI::Get(handle_, /*allow_missing=*/true);
  if (api == nullptr) return false;
  ffi::Any exists;
  api->GetAttr(handle_, tvm::runtime::kExist, &exists);
  return exists != nullptr && exists.cast<int64_t>() != 0;
}

void Device::Open() const {
  if (Exists()) return;
  Throw(kDeviceUnavailableError,
        "the model is compiled for " + kind_ + ", and TVM finds no device " + kind_ + ":" +
            std::to_string(index_) + " on this machine (it takes " + needs_ +
            "); to see what is missing, run: tvm-edge doctor");
}

Tensor Device::Place(const Tensor& value) const {
  const DLTensor& tensor = *value.operator->();
  if (is_host() && IsHostMemory(tensor.device)) {
    return IsAligned(DataOf(tensor)) && tensor.byte_offset == 0 ? value : HostCopy(tensor);
  }
  if (tensor.device.device_type == handle_.device_type &&
      tensor.device.device_id == handle_.device_id) {
    return IsAligned(tensor.data) && tensor.byte_offset == 0 ? value : value.CopyTo(handle_);
  }
  if (IsHostMemory(tensor.device)) {
    Tensor placed = Tensor::Empty(ffi::Shape(ShapeOf(tensor).begin(), ShapeOf(tensor).end()),
                                  tensor.dtype, handle_);
    if (BytesOf(tensor)) {
      Tensor::CopyFromTo(&tensor, const_cast<DLTensor*>(placed.operator->()));
      Sync();  // the memory is the caller's again
    }
    return placed;
  }
  Tensor placed = value.CopyTo(handle_);
  Synchronize(tensor.device);  // its stream is not the one that kernels run on
  return placed;
}

DLDeviceType DeviceTypeOf(const std::string& kind) {
  if (kind == "opencl") return kDLOpenCL;
  return kind == "cuda" ? kDLCUDA : kDLCPU;
}

int64_t DeviceIndex(const char* device, const std::string& kind) {
  if (device == nullptr) return 0;
  const std::string text(device);
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const std::string number = colon == text.npos ? "" : text.substr(colon + 1);
  const auto named = std::find_if(Kinds().begin(), Kinds().end(), [&](const Kind& each) {
    return std::count(each.names.begin(), each.names.end(), name) > 0;
  });
  const bool digits = !number.empty() && number.size() < 19 &&
                      number.find_first_not_of("0123456789") == number.npos;
  if (named == Kinds().end() || (colon != text.npos && !digits)) {
    ThrowInput("device=" + Quoted(text) +
                   " is not the name of a device; use 'cpu', 'opencl', 'opencl:1', 'cuda', …, or "
                   "leave it out",
               {"device", kind + ", " + kind + ":1, …", text});
  }
  if (named->kind != kind) {
    Throw(kDeviceUnavailableError,
          "the model is compiled for " + kind + " and cannot run on " + Quoted(text) +
              "; leave device out, or compile the model with target=" + Quoted(named->kind));
  }
  const int64_t index = number.empty() ? 0 : std::stoll(number);
  if (kind == "llvm" && index) {
    Throw(kDeviceUnavailableError, "there is no device " + Quoted(text) +
                                       ": all cores of this machine are 'cpu:0'; leave device "
                                       "out, and choose how many to use with num_threads");
  }
  return index;
}

DefaultStream::DefaultStream(const Device& device)
    : device_(device.handle()), set_(device.may_capture()) {
  if (set_) TVMFFIEnvSetStream(device_.device_type, device_.device_id, nullptr, &before_);
}

DefaultStream::~DefaultStream() {
  if (set_) TVMFFIEnvSetStream(device_.device_type, device_.device_id, before_, nullptr);
}

}  // namespace tvm_edge
