#include "device.h"

#include <pthread.h>
#include <strings.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>

#include "error.h"
#include "library.h"
#include "program_store.h"

namespace tvm_edge::opencl {
namespace {

constexpr int kMaxDevices = 64;
std::mutex opening;
std::atomic<Device*> opened[kMaxDevices];
std::atomic<bool> forked{false};

/*! \brief A value of clGetDeviceInfo; zero where the driver does not know the question. */
template <typename T>
T Ask(cl_device_id device, cl_info which) {
  T value{};
  if (cl().clGetDeviceInfo(device, which, sizeof(value), &value, nullptr) != CL_SUCCESS) return T{};
  return value;
}

std::vector<size_t> AskSizes(cl_device_id device, cl_info which) {
  size_t bytes = 0;
  if (cl().clGetDeviceInfo(device, which, 0, nullptr, &bytes) != CL_SUCCESS) return {};
  std::vector<size_t> values(bytes / sizeof(size_t));
  if (cl().clGetDeviceInfo(device, which, bytes, values.data(), nullptr) != CL_SUCCESS) return {};
  return values;
}

/*! \brief A string that `get(size, data, size_ret)` gives, without the zero and spaces around. */
template <typename Get>
std::string AskString(const Get& get) {
  size_t bytes = 0;
  if (get(0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return "";
  std::string value(bytes, '\0');
  if (get(bytes, &value[0], nullptr) != CL_SUCCESS) return "";
  value.resize(std::strlen(value.c_str()));
  const size_t first = value.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return value.substr(first, value.find_last_not_of(' ') - first + 1);
}

std::string PlatformString(cl_platform_id platform, cl_info which) {
  return AskString([&](size_t size, void* data, size_t* size_ret) {
    return cl().clGetPlatformInfo(platform, which, size, data, size_ret);
  });
}

std::string DeviceString(cl_device_id device, cl_info which) {
  return AskString([&](size_t size, void* data, size_t* size_ret) {
    return cl().clGetDeviceInfo(device, which, size, data, size_ret);
  });
}

/*! \brief 120 from "OpenCL 1.2 vendor's words"; 100 if it reads otherwise. */
int VersionNumber(const std::string& version) {
  int major = 1, minor = 0;
  if (std::sscanf(version.c_str(), "OpenCL %d.%d", &major, &minor) != 2) return 100;
  return major * 100 + minor * 10;
}

DeviceInfo Describe(cl_platform_id platform, cl_device_id device) {
  DeviceInfo info;
  info.platform_name = PlatformString(platform, CL_PLATFORM_NAME);
  info.platform_version = PlatformString(platform, CL_PLATFORM_VERSION);
  info.name = DeviceString(device, CL_DEVICE_NAME);
  info.vendor = DeviceString(device, CL_DEVICE_VENDOR);
  info.version = DeviceString(device, CL_DEVICE_VERSION);
  info.driver = DeviceString(device, CL_DRIVER_VERSION);
  info.extensions = DeviceString(device, CL_DEVICE_EXTENSIONS);
  info.type = Ask<cl_bitfield>(device, CL_DEVICE_TYPE);
  info.single_precision = Ask<cl_bitfield>(device, CL_DEVICE_SINGLE_FP_CONFIG);
  // A 2.x device behind a 1.2 platform is reached through 1.2 entry points.
  info.version_number = std::min(VersionNumber(info.version), VersionNumber(info.platform_version));
  info.compute_units = Ask<cl_uint>(device, CL_DEVICE_MAX_COMPUTE_UNITS);
  info.max_work_group_size = Ask<size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE);
  info.max_work_item_sizes = AskSizes(device, CL_DEVICE_MAX_WORK_ITEM_SIZES);
  info.local_memory = Ask<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE);
  info.local_memory_kind = Ask<cl_uint>(device, CL_DEVICE_LOCAL_MEM_TYPE);
  info.global_memory = Ask<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE);
  info.max_allocation = Ask<cl_ulong>(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  info.cache_line = Ask<cl_uint>(device, CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE);
  info.cache_size = Ask<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
  info.native_float_width = Ask<cl_uint>(device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
  info.clock_mhz = Ask<cl_uint>(device, CL_DEVICE_MAX_CLOCK_FREQUENCY);
  info.parameter_bytes = Ask<size_t>(device, CL_DEVICE_MAX_PARAMETER_SIZE);
  info.address_alignment = std::max(1u, Ask<cl_uint>(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8);
  // CL_DEVICE_HOST_UNIFIED_MEMORY is deprecated since 2.0 and still the only way to ask; on a CPU
  // some drivers leave it out.
  info.unified_memory = Ask<cl_bool>(device, CL_DEVICE_HOST_UNIFIED_MEMORY) == CL_TRUE ||
                        (info.type & CL_DEVICE_TYPE_CPU) != 0;
  if (info.version_number >= 200 && cl().clSVMAlloc != nullptr && cl().clSVMFree != nullptr &&
      cl().clSetKernelArgSVMPointer != nullptr && cl().clEnqueueSVMMemcpy != nullptr &&
      cl().clEnqueueSVMMap != nullptr && cl().clEnqueueSVMUnmap != nullptr) {
    info.svm = Ask<cl_bitfield>(device, CL_DEVICE_SVM_CAPABILITIES);
  }
  if (info.has("cl_nv_device_attribute_query")) {
    info.warp_size = Ask<cl_uint>(device, CL_DEVICE_WARP_SIZE_NV);
    info.registers = Ask<cl_uint>(device, CL_DEVICE_REGISTERS_PER_BLOCK_NV);
  } else if (info.has("cl_amd_device_attribute_query")) {
    info.warp_size = Ask<cl_uint>(device, CL_DEVICE_WAVEFRONT_WIDTH_AMD);
  }
  if (info.has("cl_intel_required_subgroup_size")) {
    info.sub_group_sizes = AskSizes(device, CL_DEVICE_SUB_GROUP_SIZES_INTEL);
  }
  return info;
}

/*! \brief Whether `part` of TVM_EDGE_OPENCL means this one: empty, its index, or in its name. */
bool Matches(const std::string& part, int index, const std::string& name) {
  if (part.empty()) return true;
  if (part.find_first_not_of("0123456789") == std::string::npos) {
    return part == std::to_string(index);
  }
  return ::strcasestr(name.c_str(), part.c_str()) != nullptr;
}

int Rank(const DeviceInfo& info) {
  if (info.type & CL_DEVICE_TYPE_GPU) return 0;
  if (info.type & CL_DEVICE_TYPE_ACCELERATOR) return 1;
  return 2;
}

Devices* FindDevices() {
  auto* all = new Devices();  // never freed: handles may be released while the process ends
  if (!cl().loaded()) {
    all->error = cl().error;
    return all;
  }
  cl_uint count = 0;
  const cl_int status = cl().clGetPlatformIDs(0, nullptr, &count);
  if (status != CL_SUCCESS || count == 0) {
    all->error =
        cl().path + " has no platform: no OpenCL driver is installed (" + StatusName(status) + ")";
    return all;
  }
  std::vector<cl_platform_id> platforms(count);
  cl().clGetPlatformIDs(count, platforms.data(), nullptr);

  const char* selection = std::getenv("TVM_EDGE_OPENCL");
  const std::string chosen = selection == nullptr ? "" : selection;
  const size_t colon = chosen.find(':');
  const std::string chosen_platform = chosen.substr(0, colon);
  const std::string chosen_device = colon == std::string::npos ? "" : chosen.substr(colon + 1);

  for (int p = 0; p < static_cast<int>(count); ++p) {
    cl_uint device_count = 0;
    if (cl().clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 0, nullptr, &device_count) !=
        CL_SUCCESS) {
      continue;  // a driver without hardware
    }
    std::vector<cl_device_id> devices(device_count);
    cl().clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, device_count, devices.data(), nullptr);
    for (int d = 0; d < static_cast<int>(device_count); ++d) {
      if (Ask<cl_bool>(devices[d], CL_DEVICE_AVAILABLE) != CL_TRUE) continue;
      DeviceInfo info = Describe(platforms[p], devices[d]);
      const bool matches =
          Matches(chosen_platform, p, info.platform_name) && Matches(chosen_device, d, info.name);
      all->candidates.push_back({platforms[p], devices[d], std::move(info), p, d, matches});
    }
  }
  std::stable_sort(
      all->candidates.begin(), all->candidates.end(),
      [](const Candidate& a, const Candidate& b) { return Rank(a.info) < Rank(b.info); });
  for (Candidate& candidate : all->candidates) {
    if (candidate.chosen && all->chosen.size() < kMaxDevices) all->chosen.push_back(&candidate);
  }
  if (all->candidates.empty()) {
    all->error = cl().path + " has platforms, but none has a device";
  } else if (all->chosen.empty()) {
    std::ostringstream error;
    error << "TVM_EDGE_OPENCL=" << chosen << " chooses none of";
    for (const Candidate& candidate : all->candidates) {
      error << " [" << candidate.platform_index << ":" << candidate.device_index << " "
            << candidate.info.platform_name << ": " << candidate.info.name << "]";
    }
    all->error = error.str();
  }
  return all;
}

MemoryKind ChooseMemory(const DeviceInfo& info) {
  constexpr const char* kVariable = "TVM_EDGE_OPENCL_MEMORY";
  const char* forced = std::getenv(kVariable);
  const std::string kind = forced == nullptr ? "" : forced;
  const bool fine = (info.svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;
  const bool coarse = (info.svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0;
  const MemoryKind buffer = info.unified_memory ? MemoryKind::kMapped : MemoryKind::kBuffer;
  if (kind == "buffer") return buffer;
  if (kind == "svm") {
    if (fine) return MemoryKind::kSVMFine;
    if (coarse) return MemoryKind::kSVMCoarse;
    FailVariable(kVariable, kind,
                 "must be buffer: OpenCL device " + info.name + " has no shared virtual memory",
                 "buffer");
  }
  if (!kind.empty()) FailVariable(kVariable, kind, "must be buffer or svm", "buffer or svm");
  // Shared virtual memory where it saves copies: not across a bus, and not where it must be mapped
  // like a buffer anyway.
  return info.unified_memory && fine ? MemoryKind::kSVMFine : buffer;
}

}  // namespace

const char* MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kBuffer:
      return "buffer";
    case MemoryKind::kMapped:
      return "mapped";
    case MemoryKind::kSVMCoarse:
      return "svm-coarse";
    case MemoryKind::kSVMFine:
      return "svm-fine";
  }
  return "";
}

const char* DeviceInfo::type_name() const {
  constexpr const char* kNames[] = {"gpu", "accelerator", "cpu"};
  return kNames[Rank(*this)];
}

std::string DeviceInfo::build_options() const {
  // No fast-math, and IEEE division where the device has it, as on CPUs and with CUDA: by how a
  // quotient is rounded an element falls into one bin or the next.
  return single_precision & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
             ? "-cl-fp32-correctly-rounded-divide-sqrt"
             : "";
}

bool DeviceInfo::has(const std::string& extension) const {
  return (" " + extensions + " ").find(" " + extension + " ") != std::string::npos;
}

Device::Device(cl_platform_id platform, cl_device_id device, DeviceInfo description)
    : platform(platform),
      id(device),
      info(std::move(description)),
      memory_kind(ChooseMemory(info)),
      checkpoint_interval(
          std::max<int64_t>(1, CountVariable("TVM_EDGE_OPENCL_IN_FLIGHT", 1024) / 4)),
      memory(this),
      streams(this),
      programs(this),
      command_buffers(*this) {
  ProgramStore::Global();  // which reads its variables here, and not when a model is built
  const intptr_t properties[] = {CL_CONTEXT_PLATFORM, reinterpret_cast<intptr_t>(platform), 0};
  cl_int status = CL_SUCCESS;
  context = cl().clCreateContext(properties, 1, &id, nullptr, nullptr, &status);
  Check(status, this, "creating a context");
}

std::string Device::Describe() const { return std::to_string(index) + " (" + info.name + ")"; }

void Device::CheckUsable() const {
  if (lost) {
    TVM_FFI_THROW(RuntimeError) << "OpenCL device " << Describe()
                                << " is lost: an earlier command failed; start the process again";
  }
}

bool Forked() noexcept { return forked.load(std::memory_order_relaxed); }

const Devices& AllDevices() {
  if (Forked()) {
    // A RuntimeError where tvm_edge.runtime has not made the class known.
    TVM_FFI_THROW(tvm_edge.DeviceUnavailableError)
        << "OpenCL was initialised before this process was forked, and drivers do not survive a "
           "fork; start workers with multiprocessing.get_context('spawn')";
  }
  static const Devices* devices = [] {
    Devices* found = FindDevices();
    if (!found->candidates.empty()) {
      pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    }
    return found;
  }();
  return *devices;
}

Device* GetDevice(int index) {
  if (Device* device = OpenedDevice(index); device != nullptr && !Forked()) return device;
  const Devices& all = AllDevices();
  if (index < 0 || index >= static_cast<int>(all.chosen.size())) {
    if (all.chosen.empty()) {
      TVM_FFI_THROW(RuntimeError) << "No OpenCL device: " << all.error
                                  << "; `tvm-edge doctor` looks for what is missing";
    }
    TVM_FFI_THROW(RuntimeError) << "No OpenCL device " << index << ": there are "
                                << all.chosen.size() << "; `tvm-edge devices` lists them";
  }
  std::lock_guard<std::mutex> lock(opening);
  if (Device* device = OpenedDevice(index)) return device;
  const Candidate& candidate = *all.chosen[index];
  auto device = std::make_unique<Device>(candidate.platform, candidate.device, candidate.info);
  device->index = index;
  // Never freed: tensors and kernels may outlive everything else in the process.
  opened[index].store(device.get(), std::memory_order_release);
  return device.release();
}

Device* OpenedDevice(int index) noexcept {
  if (index < 0 || index >= kMaxDevices) return nullptr;
  return opened[index].load(std::memory_order_acquire);
}

}  // namespace tvm_edge::opencl
