#include "program.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "device.h"
#include "error.h"
#include "library.h"
#include "program_store.h"

namespace tvm_edge::opencl {
namespace {

cl_int BuildFor(const Device* device, cl_program program) {
  const std::string options = device->info.build_options();
  return cl().clBuildProgram(program, 1, &device->id, options.c_str(), nullptr, nullptr);
}

}  // namespace

Program::Program(Device* device, KernelSources kernels)
    : device_(device), kernels_(std::move(kernels)) {}

Program::~Program() {
  device_->programs.Forget(this);
  if (program_ != nullptr && !Forked()) cl().clReleaseProgram(program_);
}

std::string Program::Source() const {
  std::string source;
  for (const KernelSource& kernel : *kernels_) {
    source += kernel.source;
    source += '\n';
  }
  return source;
}

std::string Program::Key() const {
  const DeviceInfo& info = device_->info;
  std::string key;
  for (const std::string* part : {&info.platform_name, &info.platform_version, &info.vendor,
                                  &info.name, &info.version, &info.driver}) {
    key += *part;
    key += '\n';
  }
  key += info.build_options();
  key += '\n';
  key += Source();
  return key;
}

cl_program Program::Build() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (program_ != nullptr || fails_together_) return program_;
  device_->CheckUsable();
  ProgramStore& store = ProgramStore::Global();
  const std::string key = Key();
  program_ = store.Use(key, [this](const std::string& binary) { return FromBinary(binary); });
  if (program_ != nullptr) return program_;

  cl_int status = CL_SUCCESS;
  std::string log;
  program_ = FromSource(&status, &log);
  if (program_ != nullptr) {
    store.CountBuild();
    if (store.keeps()) store.Put(key, ReadBinary(program_));
    return program_;
  }
  if (kernels_->size() == 1 && (IsLost(status) || IsOutOfMemory(status))) {
    Fail(status, device_, "building kernel '" + kernels_->front().name + "'");
  }
  if (kernels_->size() == 1) {
    TVM_FFI_THROW(RuntimeError) << "OpenCL device " << device_->Describe()
                                << " cannot build kernel '" << kernels_->front().name << "' ("
                                << StatusName(status) << "); the driver's log:\n"
                                << log;
  }
  fails_together_ = true;
  return nullptr;
}

cl_program Program::FromBinary(const std::string& binary) noexcept {
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  cl_int status = CL_SUCCESS, accepted = CL_SUCCESS;
  cl_program program = cl().clCreateProgramWithBinary(device_->context, 1, &device_->id, &size,
                                                      &data, &accepted, &status);
  if (status == CL_SUCCESS && accepted == CL_SUCCESS && BuildFor(device_, program) == CL_SUCCESS) {
    // Some drivers take a damaged binary and fail only here.
    cl_kernel kernel = cl().clCreateKernel(program, kernels_->front().name.c_str(), &status);
    if (status == CL_SUCCESS) {
      cl().clReleaseKernel(kernel);
      return program;
    }
  }
  if (program != nullptr) cl().clReleaseProgram(program);
  return nullptr;
}

cl_program Program::FromSource(cl_int* status, std::string* log) {
  const std::string text = Source();
  const char* source = text.c_str();
  const size_t size = text.size();
  cl_program program = cl().clCreateProgramWithSource(device_->context, 1, &source, &size, status);
  Check(*status, device_, "creating a program");
  *status = BuildFor(device_, program);
  if (*status == CL_SUCCESS) return program;

  size_t length = 0;
  if (cl().clGetProgramBuildInfo(program, device_->id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length) ==
          CL_SUCCESS &&
      length > 1) {
    log->resize(length);
    cl().clGetProgramBuildInfo(program, device_->id, CL_PROGRAM_BUILD_LOG, length, &(*log)[0],
                               nullptr);
    log->resize(length - 1);  // the zero at the end
  }
  cl().clReleaseProgram(program);
  return nullptr;
}

std::string Program::ReadBinary(cl_program program) {
  size_t size = 0;
  if (cl().clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr) !=
      CL_SUCCESS) {
    return {};
  }
  std::string binary(size, '\0');
  char* data = &binary[0];
  if (size == 0 || cl().clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(data), &data,
                                         nullptr) != CL_SUCCESS) {
    return {};
  }
  return binary;
}

std::string Program::Binary() {
  if (Build() == nullptr) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  return ReadBinary(program_);
}

Kernel::Kernel(Device* device, std::shared_ptr<Program> from, const std::string& name)
    : device(device), program(std::move(from)) {
  cl_int status = CL_SUCCESS;
  handle = cl().clCreateKernel(program->Build(), name.c_str(), &status);
  if (status != CL_SUCCESS) Fail(status, device, "creating kernel '" + name + "'");
}

Kernel::~Kernel() {
  if (!Forked()) cl().clReleaseKernel(handle);
}

void Kernel::ForgetStaleArguments() {
  const uint64_t now = device->memory.generation();
  if (std::exchange(generation_, now) != now) arguments_.clear();
}

cl_int Kernel::SetArgument(cl_uint index, size_t bytes, const void* value, bool is_svm) {
  if (index >= arguments_.size()) arguments_.resize(index + 1);
  Argument& argument = arguments_[index];
  uint64_t wanted = 0;
  static_assert(sizeof(wanted) >= sizeof(cl_mem), "arguments are scalars and handles");
  std::memcpy(&wanted, value, bytes);
  if (argument.known && argument.value == wanted) return CL_SUCCESS;
  const cl_int status =
      is_svm ? cl().clSetKernelArgSVMPointer(handle, index, *static_cast<void* const*>(value))
             : cl().clSetKernelArg(handle, index, bytes, value);
  argument = {status == CL_SUCCESS, wanted};
  return status;
}

size_t Kernel::Info(cl_info which) const {
  // Sizes are size_t or cl_ulong: the same on the 64-bit machines TVM has wheels for.
  static_assert(sizeof(size_t) == sizeof(cl_ulong), "32-bit hosts are not supported");
  size_t value = 0;
  Check(cl().clGetKernelWorkGroupInfo(handle, device->id, which, sizeof(value), &value, nullptr),
        device, "asking for a kernel's limits");
  return value;
}

std::vector<size_t> Kernel::RequiredWorkGroupSize() const {
  std::vector<size_t> size(3, 0);
  Check(cl().clGetKernelWorkGroupInfo(handle, device->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                                      3 * sizeof(size_t), size.data(), nullptr),
        device, "asking for a kernel's work-group size");
  return size;
}

bool Programs::BySource::operator()(const std::vector<KernelSource>* a,
                                    const std::vector<KernelSource>* b) const {
  return std::lexicographical_compare(
      a->begin(), a->end(), b->begin(), b->end(),
      [](const KernelSource& x, const KernelSource& y) { return x.source < y.source; });
}

std::shared_ptr<Program> Programs::Get(const KernelSources& kernels) {
  std::shared_ptr<Program> known, program;  // outlive the lock: a program's destructor takes it
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = live_.find(kernels.get());
  if (found != live_.end()) {
    known = found->second.lock();
    if (known != nullptr) return known;
    live_.erase(found);  // on its way out
  }
  program = std::make_shared<Program>(device_, kernels);
  live_[kernels.get()] = program;
  return program;
}

void Programs::Forget(const Program* program) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = live_.find(program->kernels().get());
  // Another program of the same source may have taken the place meanwhile.
  if (found != live_.end() && found->second.expired()) live_.erase(found);
}

}  // namespace tvm_edge::opencl
