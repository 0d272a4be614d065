#include "recorded_region.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/vm/vm.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "command_buffer.h"
#include "device.h"
#include "error.h"

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
namespace vm = tvm::runtime::vm;
namespace {

// One launch costs the host no more than a replay.
constexpr size_t kFewestLaunches = 2;

using Arguments = ffi::Array<ffi::Any>;

/*! \brief Whether two arguments mean the same; tensors are often new views of the same memory. */
bool SameArgument(const ffi::Any& a, const ffi::Any& b) {
  if (a.same_as(b)) return true;
  if (const auto x = a.as<ffi::Tensor>(), y = b.as<ffi::Tensor>(); x && y) {
    return x->data_ptr() == y->data_ptr();
  }
  if (const auto x = a.as<Arguments>(), y = b.as<Arguments>(); x && y) {
    return std::equal(x->begin(), x->end(), y->begin(), y->end(), SameArgument);
  }
  if (const auto x = a.as<ffi::Shape>(), y = b.as<ffi::Shape>(); x && y) {
    return std::equal(x->begin(), x->end(), y->begin(), y->end());
  }
  return false;
}

ffi::Any Invoke(vm::VirtualMachine* machine, const ffi::ObjectRef& function,
                const Arguments& arguments) {
  const std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  ffi::Any result;
  machine->InvokeClosurePacked(
      function, ffi::PackedArgs(views.data(), static_cast<int32_t>(views.size())), &result);
  return result;
}

/*! \brief A region of one virtual machine. */
class Region {
 public:
  ffi::Any Run(Device* device, vm::VirtualMachine* machine, const ffi::ObjectRef& function,
               const Arguments& arguments) {
    CommandBuffers& extension = device->command_buffers;
    std::string failure;
    if (extension.missing().empty() && !given_up_) {
      Stream* stream = device->streams.Get(TVMFFIEnvGetStream(kDLOpenCL, device->index));
      if (commands_ == nullptr) failure = Record(stream, device, machine, function, arguments);
      if (commands_ != nullptr && SameArgument(arguments_, arguments)) {
        failure = Replay(stream);
        if (failure.empty() && replayed_) return result_;
      }
    }
    extension.CountPlain();
    ffi::Any result = Invoke(machine, function, arguments);
    // What plain launches complain of as well was no failure of the recording.
    if (!failure.empty()) {
      given_up_ = true;
      commands_ = nullptr;
      extension.CountFailed(failure);
    }
    return result;
  }

 private:
  /*! \brief Try to record; why it failed, or empty: it may also be put off. */
  std::string Record(Stream* stream, Device* device, vm::VirtualMachine* machine,
                     const ffi::ObjectRef& function, const Arguments& arguments) {
    const cl_command_queue queue = stream->QueueForRecording();
    if (queue == nullptr) return "";  // commands are timed
    try {
      auto commands = std::make_unique<CommandBuffer>(device, queue);
      {
        RecordingScope scope(commands.get());
        result_ = Invoke(machine, function, arguments);
      }
      if (commands->launches() < kFewestLaunches) {
        given_up_ = true;
        return "";
      }
      commands->Finalize();
      arguments_ = arguments;
      commands_ = std::move(commands);
      device->command_buffers.CountRecorded(commands_->launches());
      return "";
    } catch (const ffi::Error& error) {
      return error.message();
    }
  }

  /*! \brief Try to replay, which sets `replayed_`; why the recording is of no use, or empty. */
  std::string Replay(Stream* stream) {
    replayed_ = false;
    Device* device = commands_->device;
    device->CheckUsable();
    if (commands_->HasViews()) return "";  // a launch says which kernel is in the way
    const cl_int status = commands_->Replay(stream);
    if (status == CL_SUCCESS) {
      device->command_buffers.CountReplayed();
      replayed_ = true;
      return "";
    }
    if (status == CL_INCOMPATIBLE_COMMAND_QUEUE_KHR) return "";  // commands are timed
    // A driver may wait for the end of a command buffer and yet call it pending for a moment.
    if (status == CL_INVALID_OPERATION && !device->command_buffers.simultaneous()) return "";
    const std::string what =
        "replaying " + std::to_string(commands_->launches()) + " recorded launches";
    // Some launches may have been enqueued before memory ran out: they must not run twice.
    if (IsOutOfMemory(status) || status == CL_OUT_OF_RESOURCES) Fail(status, device, what);
    return "OpenCL device " + device->Describe() + ": " + what + " failed with " +
           StatusName(status);
  }

  bool given_up_ = false;
  bool replayed_ = false;
  // Destroyed from the last to the first: the commands go before the memory that they name.
  Arguments arguments_;
  ffi::Any result_;
  std::unique_ptr<CommandBuffer> commands_;
};

/*! \brief A region's number in the model, and the lengths that its launches depend on. */
using RegionKey = std::pair<int64_t, std::vector<int64_t>>;

/*! \brief The regions and their storage, alive as long as the virtual machine. */
class RegionsObj : public vm::VMExtensionNode {
 public:
  ffi::Any Run(vm::VirtualMachine* machine, const ffi::ObjectRef& function,
               const Arguments& arguments, RegionKey key) {
    const tvm::Device device = machine->devices.at(0);
    if (device.device_type != kDLOpenCL) {
      TVM_FFI_THROW(ValueError) << "This model is compiled for OpenCL, and its first device is of "
                                << "DLPack type " << int{device.device_type};
    }
    return regions_[std::move(key)].Run(GetDevice(device.device_id), machine, function, arguments);
  }

  ffi::Any Allocation(vm::VirtualMachine* machine, const ffi::ObjectRef& function, int64_t index) {
    ffi::Any& allocation = allocations_[index];
    if (allocation == nullptr) allocation = Invoke(machine, function, {});
    return allocation;
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_edge.OpenCLRegions", RegionsObj, vm::VMExtensionNode);

 private:
  std::map<int64_t, ffi::Any> allocations_;
  std::map<RegionKey, Region> regions_;
};

class Regions : public vm::VMExtension {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Regions, vm::VMExtension, RegionsObj);
  static Regions Create() { return Regions(ffi::make_object<RegionsObj>()); }
};

}  // namespace

void RunOrCapture(ffi::PackedArgs args, ffi::Any* result) {
  if (args.size() != 4 && args.size() != 5) {
    TVM_FFI_THROW(TypeError) << "run_or_capture takes 4 or 5 arguments, got " << args.size();
  }
  vm::VirtualMachine* machine = vm::VirtualMachine::GetContextPtr(args[0]);
  RegionKey key{args[3].cast<int64_t>(), {}};
  Arguments arguments = args[2].cast<Arguments>();
  if (args.size() == 5) {
    const auto lengths = args[4].cast<ffi::Shape>();
    key.second.assign(lengths.begin(), lengths.end());
  }
  *result = machine->GetOrCreateExtension<Regions>()->Run(
      machine, args[1].cast<ffi::ObjectRef>(), arguments, std::move(key));
}

void GetCachedAlloc(ffi::PackedArgs args, ffi::Any* result) {
  vm::VirtualMachine* machine = vm::VirtualMachine::GetContextPtr(args[0]);
  *result = machine->GetOrCreateExtension<Regions>()->Allocation(
      machine, args[1].cast<ffi::ObjectRef>(), args[2].cast<int64_t>());
}

}  // namespace tvm_edge::opencl
