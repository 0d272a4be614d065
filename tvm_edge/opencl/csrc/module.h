// The runtime module of generated OpenCL kernels.
#ifndef TVM_EDGE_OPENCL_MODULE_H_
#define TVM_EDGE_OPENCL_MODULE_H_

#include <tvm/ffi/extra/module.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "command_buffer.h"
#include "device.h"
#include "metadata.h"
#include "program.h"

namespace tvm_edge::opencl {

using FunctionTable = tvm::ffi::Map<tvm::ffi::String, tvm::runtime::FunctionInfo>;
using SourceTable = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String>;

/*! \brief One generated kernel: how to call it, and its kernel object on each device in use. */
class KernelFunction {
 public:
  /*! \brief Kernel `index` of a module's `sources`. */
  KernelFunction(KernelSources sources, size_t index, const tvm::runtime::FunctionInfo& info);

  /*! \brief The kernel on a device, built at the first call. */
  Kernel* On(Device* device);
  /*! \brief Launch on the thread's device and stream; arguments as TVM's host code packs them. */
  void Launch(tvm::ffi::PackedArgs args);

  const std::string& name() const { return name_; }

 private:
  /*! \brief Set a launch's arguments; `blocks`, if given, gets the memory that they name. */
  void SetArguments(Kernel* kernel, Device* device, const TVMFFIAny* args,
                    std::vector<Allocation*>* blocks = nullptr);
  /*! \brief Append a launch to what the thread records. */
  void Record(CommandBuffer* recording, Device* device, const TVMFFIAny* args, const size_t* global,
              const size_t* local);
  [[noreturn]] void FailLaunch(cl_int status, Kernel* kernel, const size_t* global,
                               const size_t* local);

  /*! \brief The built program with this kernel: the module's, or where that fails its own. */
  std::shared_ptr<Program> BuildProgram(Device* device);

  const KernelSources sources_;
  const size_t index_;
  const std::string& name_;  // in sources_
  std::vector<DLDataType> parameters_;
  std::vector<int> launch_axes_;  // of each launch argument: 0-2 blockIdx.xyz, 3-5 threadIdx.xyz
  cl_uint dimensions_ = 1;
  std::mutex mutex_;                                          // guards kernels_
  std::unordered_map<int, std::unique_ptr<Kernel>> kernels_;  // by device
  // What every launch looks up: the kernel of the device used last.
  std::atomic<Kernel*> last_{nullptr};
};

/*! \brief A module of kernels; kind "opencl", in the format of TVM's own OpenCL modules. */
class OpenCLModule : public tvm::ffi::ModuleObj {
 public:
  OpenCLModule(tvm::ffi::Bytes code, tvm::ffi::String format, FunctionTable functions,
               SourceTable sources);
  ~OpenCLModule();

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final {
    return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable;
  }
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;
  tvm::ffi::Bytes SaveToBytes() const final;
  tvm::ffi::String InspectSource(const tvm::ffi::String& format) const final;

  static tvm::ffi::Module LoadFromBytes(const tvm::ffi::Bytes& bytes);

  /*! \brief One module with the kernels of all, in order; other modules among them are an error. */
  static tvm::ffi::Module Join(const tvm::ffi::Array<tvm::ffi::Module>& modules);

  /*! \brief The kernels in the order of their source. */
  const std::vector<std::shared_ptr<KernelFunction>>& kernels() const { return kernels_; }

 private:
  const tvm::ffi::Bytes code_;
  const tvm::ffi::String format_;
  const FunctionTable functions_;
  const SourceTable sources_;
  std::vector<std::shared_ptr<KernelFunction>> kernels_;
  std::unordered_map<std::string, std::shared_ptr<KernelFunction>> by_name_;
};

/*! \brief The OpenCL modules among a module and all that it imports. */
std::vector<const OpenCLModule*> FindOpenCLModules(const tvm::ffi::Module& root);

/*! \brief The device id that the calling thread has set; see DeviceAPI::SetDevice. */
int& ThreadDevice();

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_MODULE_H_
