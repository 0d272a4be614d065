// A kernel of a module: its arguments, and its launches.
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>
#include <utility>

#include "error.h"
#include "library.h"
#include "module.h"

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
namespace {

/*! \brief Position of a launch tag among blockIdx.xyz, threadIdx.xyz; -1 if it is none of them. */
int LaunchAxis(const std::string& tag) {
  static constexpr const char* kTags[] = {"blockIdx.x",  "blockIdx.y",  "blockIdx.z",
                                          "threadIdx.x", "threadIdx.y", "threadIdx.z"};
  const auto* found = std::find(std::begin(kTags), std::end(kTags), tag);
  return found == std::end(kTags) ? -1 : static_cast<int>(found - std::begin(kTags));
}

/*! \brief A product, or the largest number where it is larger. */
size_t Product(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

std::string Sizes(const size_t* sizes, cl_uint count) {
  std::ostringstream text;
  for (cl_uint i = 0; i < count; ++i) text << (i == 0 ? "" : "x") << sizes[i];
  return text.str();
}

/*! \brief A scalar argument as the bytes a kernel expects. */
union Scalar {
  int8_t i8;
  int16_t i16;
  int32_t i32;
  int64_t i64;
  uint16_t f16;
  float f32;
  double f64;
};

/*! \brief The nearest half, ties to even, as its bits. */
uint16_t ToHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;  // rounds to infinity
  int exponent = 0;
  std::frexp(size, &exponent);
  // Halves have 11 bits, and none below 2^-24.
  const int unit = std::max(exponent - 11, -24);
  const auto steps = static_cast<uint16_t>(std::nearbyint(std::ldexp(size, -unit)));
  // Adding lets a carry out of the 11 bits reach the exponent.
  return sign | static_cast<uint16_t>(unit == -24 ? steps : ((unit + 24) << 10) + steps);
}

bool CanPass(DLDataType type) {
  if (type.lanes != 1) return false;
  switch (type.code) {
    case kDLOpaqueHandle:
      return true;
    case kDLInt:
    case kDLUInt:
    case kDLBool:
      return type.bits == 1 || type.bits == 8 || type.bits == 16 || type.bits == 32 ||
             type.bits == 64;
    case kDLFloat:
      return type.bits == 16 || type.bits == 32 || type.bits == 64;
    default:
      return false;
  }
}

/*! \brief Convert what TVM passes: integers and booleans as int64, floating point as float64. */
Scalar Convert(const TVMFFIAny& value, DLDataType type, const std::string& kernel) {
  const bool integer = value.type_index == ffi::TypeIndex::kTVMFFIInt ||
                       value.type_index == ffi::TypeIndex::kTVMFFIBool;
  if (!integer && (value.type_index != ffi::TypeIndex::kTVMFFIFloat || type.code != kDLFloat)) {
    TVM_FFI_THROW(TypeError) << "OpenCL kernel '" << kernel << "' was given a "
                             << (value.type_index == ffi::TypeIndex::kTVMFFIFloat
                                     ? "floating-point number for an integer"
                                     : "value for a number that is none");
  }
  Scalar scalar{};
  if (type.code == kDLFloat) {
    const double number = integer ? static_cast<double>(value.v_int64) : value.v_float64;
    if (type.bits == 64) {
      scalar.f64 = number;
    } else if (type.bits == 32) {
      scalar.f32 = static_cast<float>(number);
    } else {
      scalar.f16 = ToHalf(number);
    }
  } else if (type.bits == 64) {
    scalar.i64 = value.v_int64;
  } else if (type.bits == 32) {
    scalar.i32 = static_cast<int32_t>(value.v_int64);
  } else if (type.bits == 16) {
    scalar.i16 = static_cast<int16_t>(value.v_int64);
  } else {
    scalar.i8 = static_cast<int8_t>(value.v_int64);
  }
  return scalar;
}

}  // namespace

int& ThreadDevice() {
  static thread_local int device = 0;
  return device;
}

KernelFunction::KernelFunction(KernelSources sources, size_t index,
                               const tvm::runtime::FunctionInfo& info)
    : sources_(std::move(sources)), index_(index), name_((*sources_)[index].name) {
  for (DLDataType type : info->arg_types) {
    if (!CanPass(type)) {
      // Not DLDataTypeToString: it throws for a type that damage made up.
      TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << name_ << "' has a parameter of "
                                << int{type.bits} << " bits × " << type.lanes << " lanes (DLPack "
                                << "type code " << int{type.code}
                                << "), which OpenCL cannot pass by value";
    }
    parameters_.push_back(type);
  }
  for (const ffi::String& tag : info->launch_param_tags) {
    if (tag == tvm::runtime::launch_param::kUseDynamicSharedMemoryTag) {
      TVM_FFI_THROW(ValueError)
          << "OpenCL kernel '" << name_
          << "' uses scope 'shared.dyn', which TVM's OpenCL code generator turns into private "
             "memory; use 'shared' with a constant size";
    }
    const int axis = LaunchAxis(tag);
    if (axis < 0) {
      TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << name_ << "' needs '" << tag
                                << "', which OpenCL does not have";
    }
    launch_axes_.push_back(axis);
    dimensions_ = std::max(dimensions_, static_cast<cl_uint>(axis % 3 + 1));
  }
}

std::shared_ptr<Program> KernelFunction::BuildProgram(Device* device) {
  auto program = device->programs.Get(sources_);
  if (program->Build() == nullptr) {
    program = device->programs.Get(
        std::make_shared<const std::vector<KernelSource>>(1, (*sources_)[index_]));
  }
  return program;
}

Kernel* KernelFunction::On(Device* device) {
  Kernel* last = last_.load(std::memory_order_acquire);
  if (last != nullptr && last->device == device) return last;
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Kernel>& kernel = kernels_[device->index];
  if (kernel == nullptr) kernel = std::make_unique<Kernel>(device, BuildProgram(device), name_);
  last_.store(kernel.get(), std::memory_order_release);
  return kernel.get();
}

void KernelFunction::SetArguments(Kernel* kernel, Device* device, const TVMFFIAny* args,
                                  std::vector<Allocation*>* blocks) {
  kernel->ForgetStaleArguments();
  for (cl_uint i = 0; i < parameters_.size(); ++i) {
    cl_int status = CL_SUCCESS;
    if (parameters_[i].code != kDLOpaqueHandle) {
      const Scalar scalar = Convert(args[i], parameters_[i], name_);
      status = kernel->SetArgument(i, (parameters_[i].bits + 7) / 8, &scalar);
    } else if (args[i].type_index != ffi::TypeIndex::kTVMFFIOpaquePtr &&
               args[i].type_index != ffi::TypeIndex::kTVMFFINone) {
      // Its bits would be taken for an address.
      TVM_FFI_THROW(TypeError) << "OpenCL kernel '" << name_ << "' was given "
                               << ffi::TypeIndexToTypeKey(args[i].type_index) << " for argument "
                               << i << ", which is a pointer";
    } else if (args[i].type_index == ffi::TypeIndex::kTVMFFINone || args[i].v_ptr == nullptr) {
      const cl_mem none = nullptr;
      status = kernel->SetArgument(i, sizeof(none), &none);
    } else {
      const Place place = device->memory.Find(args[i].v_ptr, name_.c_str());
      if (place.block->views.load(std::memory_order_relaxed) > 0) {
        TVM_FFI_THROW(RuntimeError)
            << "Kernel '" << name_ << "' was launched on a tensor that the host has a view of; "
            << "drop the view (tvm_edge.opencl.host_view) first";
      }
      if (blocks != nullptr) blocks->push_back(place.block);
      if (place.block->svm != nullptr) {
        status = kernel->SetArgument(i, sizeof(void*), &args[i].v_ptr, /*is_svm=*/true);
      } else {
        const cl_mem buffer = device->memory.BufferAt(place, name_.c_str());
        status = kernel->SetArgument(i, sizeof(buffer), &buffer);
      }
    }
    if (status != CL_SUCCESS) {
      Fail(status, device, "setting argument " + std::to_string(i) + " of kernel '" + name_ + "'");
    }
  }
}

void KernelFunction::Launch(ffi::PackedArgs args) {
  Device* device = GetDevice(ThreadDevice());
  const size_t expected = parameters_.size() + launch_axes_.size();
  if (static_cast<size_t>(args.size()) != expected) {
    TVM_FFI_THROW(TypeError) << "OpenCL kernel '" << name_ << "' takes " << expected
                             << " arguments, got " << args.size();
  }
  device->CheckUsable();
  const auto* values = reinterpret_cast<const TVMFFIAny*>(args.data());
  size_t sizes[6] = {1, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < launch_axes_.size(); ++i) {
    const TVMFFIAny& value = values[parameters_.size() + i];
    if (value.type_index != ffi::TypeIndex::kTVMFFIInt) {
      TVM_FFI_THROW(TypeError) << "OpenCL kernel '" << name_ << "' was given "
                               << ffi::TypeIndexToTypeKey(value.type_index)
                               << " for the size of a launch, which is an integer";
    }
    const int64_t size = value.v_int64;
    if (size <= 0) return;  // a dimension of length zero: nothing to compute
    sizes[launch_axes_[i]] = static_cast<size_t>(size);
  }
  const size_t* local = sizes + 3;
  size_t global[3];
  for (int i = 0; i < 3; ++i) {
    global[i] = Product(sizes[i], local[i]);
    if (global[i] == SIZE_MAX) {
      TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << name_ << "' was launched on " << sizes[i]
                                << " work-groups of " << local[i]
                                << " work-items, more than a number can say";
    }
  }

  if (CommandBuffer* recording = ThreadRecording()) {
    Record(recording, device, values, global, local);
    return;
  }
  Kernel* kernel = On(device);
  Stream* stream = device->streams.Get(TVMFFIEnvGetStream(kDLOpenCL, device->index));
  cl_int status = CL_SUCCESS;
  {
    // A kernel object holds its arguments until it is enqueued.
    std::lock_guard<std::mutex> lock(kernel->mutex);
    SetArguments(kernel, device, values);
    status =
        stream->Submit(name_, /*is_kernel=*/true, [&](cl_command_queue queue, cl_event* event) {
          return cl().clEnqueueNDRangeKernel(queue, kernel->handle, dimensions_, nullptr, global,
                                             local, 0, nullptr, event);
        });
  }
  if (status != CL_SUCCESS) FailLaunch(status, kernel, global, local);
}

void KernelFunction::Record(CommandBuffer* recording, Device* device, const TVMFFIAny* args,
                            const size_t* global, const size_t* local) {
  if (device != recording->device) RefuseWhileRecording("A launch on another device");
  auto kernel = std::make_unique<Kernel>(device, On(device)->program, name_);
  std::vector<Allocation*> blocks;
  SetArguments(kernel.get(), device, args, &blocks);
  recording->Append(std::move(kernel), name_, dimensions_, global, local, blocks);
}

void KernelFunction::FailLaunch(cl_int status, Kernel* kernel, const size_t* global,
                                const size_t* local) {
  Device* device = kernel->device;
  if (status == CL_INVALID_WORK_GROUP_SIZE || status == CL_INVALID_WORK_ITEM_SIZE) {
    const DeviceInfo& info = device->info;
    size_t asked = 1;
    for (cl_uint i = 0; i < dimensions_; ++i) asked = Product(asked, local[i]);
    const size_t allowed = kernel->Info(CL_KERNEL_WORK_GROUP_SIZE);
    const std::vector<size_t> required = kernel->RequiredWorkGroupSize();
    if (required[0] != 0 && !std::equal(local, local + dimensions_, required.begin())) {
      TVM_FFI_THROW(ValueError) << "OpenCL device " << device->Describe() << " refuses kernel '"
                                << name_ << "' with work-groups of " << Sizes(local, dimensions_)
                                << ": its source requires " << Sizes(required.data(), 3);
    }
    TVM_FFI_THROW(ValueError) << "OpenCL device " << device->Describe() << " refuses kernel '"
                              << name_ << "' with work-groups of " << Sizes(local, dimensions_)
                              << " = " << asked << " work-items: this kernel may have " << allowed
                              << ", the device allows " << info.max_work_group_size << " and "
                              << Sizes(info.max_work_item_sizes.data(),
                                       static_cast<cl_uint>(info.max_work_item_sizes.size()))
                              << " per dimension";
  }
  Fail(status, device,
       "launching kernel '" + name_ + "' on " + Sizes(global, dimensions_) +
           " work-items in groups of " + Sizes(local, dimensions_));
}

}  // namespace tvm_edge::opencl
