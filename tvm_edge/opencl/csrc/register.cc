// The functions this library adds to TVM's registry; see tvm_edge/opencl/__init__.py for their use.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "device.h"
#include "device_api.h"
#include "foreign_memory.h"
#include "host_access.h"
#include "library.h"
#include "module.h"
#include "program_store.h"
#include "recorded_region.h"

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
namespace {

using Dictionary = ffi::Map<ffi::String, ffi::Any>;

ffi::Array<int64_t> Integers(const std::vector<size_t>& values) {
  ffi::Array<int64_t> array;
  for (size_t value : values) array.push_back(static_cast<int64_t>(value));
  return array;
}

/*! \brief What was looked for and found; opens no device. */
Dictionary Status() {
  const Devices& all = AllDevices();
  ffi::Array<Dictionary> devices;
  for (const Candidate& candidate : all.candidates) {
    devices.push_back({{"platform", ffi::String(candidate.info.platform_name)},
                       {"platform_index", candidate.platform_index},
                       {"device_index", candidate.device_index},
                       {"name", ffi::String(candidate.info.name)},
                       {"type", ffi::String(candidate.info.type_name())},
                       {"version", ffi::String(candidate.info.version)},
                       {"used", candidate.chosen}});
  }
  const char* selection = std::getenv("TVM_EDGE_OPENCL");
  return {{"library", ffi::String(cl().path)},
          {"error", ffi::String(all.error)},
          {"selection", ffi::String(selection == nullptr ? "" : selection)},
          {"devices", devices}};
}

Dictionary DeviceInfoOf(int index) {
  const Device* device = GetDevice(index);
  const DeviceInfo& info = device->info;
  constexpr const char* kLocalKinds[] = {"none", "dedicated", "global"};
  const char* svm = (info.svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER)     ? "fine"
                    : (info.svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) ? "coarse"
                                                                     : "none";
  return {{"name", ffi::String(info.name)},
          {"vendor", ffi::String(info.vendor)},
          {"platform", ffi::String(info.platform_name)},
          {"version", ffi::String(info.version)},
          {"driver", ffi::String(info.driver)},
          {"type", ffi::String(info.type_name())},
          {"extensions", ffi::String(info.extensions)},
          {"compute_units", static_cast<int64_t>(info.compute_units)},
          {"max_work_group_size", static_cast<int64_t>(info.max_work_group_size)},
          {"max_work_item_sizes", Integers(info.max_work_item_sizes)},
          {"local_memory", static_cast<int64_t>(info.local_memory)},
          {"local_memory_kind", ffi::String(kLocalKinds[std::min(info.local_memory_kind, 2u)])},
          {"global_memory", static_cast<int64_t>(info.global_memory)},
          {"max_allocation", static_cast<int64_t>(info.max_allocation)},
          {"cache_line", static_cast<int64_t>(info.cache_line)},
          {"cache_size", static_cast<int64_t>(info.cache_size)},
          {"native_float_width", static_cast<int64_t>(info.native_float_width)},
          {"clock_mhz", static_cast<int64_t>(info.clock_mhz)},
          {"unified_memory", info.unified_memory},
          {"float16", info.has("cl_khr_fp16")},
          {"float64", info.has("cl_khr_fp64")},
          {"sub_group_sizes", Integers(info.sub_group_sizes)},
          {"warp_size", static_cast<int64_t>(info.warp_size)},
          {"registers", static_cast<int64_t>(info.registers)},
          {"address_alignment", static_cast<int64_t>(info.address_alignment)},
          {"svm", ffi::String(svm)},
          {"memory", ffi::String(MemoryKindName(device->memory_kind))}};
}

KernelFunction* FindKernel(const ffi::Module& root, const std::string& name) {
  for (const OpenCLModule* module : FindOpenCLModules(root)) {
    for (const auto& kernel : module->kernels()) {
      if (kernel->name() == name) return kernel.get();
    }
  }
  TVM_FFI_THROW(ValueError) << "The module has no OpenCL kernel '" << name << "'";
  TVM_FFI_UNREACHABLE();
}

Dictionary KernelInfo(const ffi::Module& root, const ffi::String& name, int index) {
  Kernel* kernel = FindKernel(root, name)->On(GetDevice(index));
  auto integer = [&](cl_info which) { return static_cast<int64_t>(kernel->Info(which)); };
  return {{"max_work_group_size", integer(CL_KERNEL_WORK_GROUP_SIZE)},
          {"preferred_multiple", integer(CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE)},
          {"local_memory", integer(CL_KERNEL_LOCAL_MEM_SIZE)},
          {"private_memory", integer(CL_KERNEL_PRIVATE_MEM_SIZE)},
          {"required_work_group_size", Integers(kernel->RequiredWorkGroupSize())}};
}

Dictionary MemoryOf(int index) {
  const Memory::Stats stats = GetDevice(index)->memory.stats();
  return {{"in_use", static_cast<int64_t>(stats.in_use)},
          {"peak", static_cast<int64_t>(stats.peak)},
          {"pooled", static_cast<int64_t>(stats.pooled)},
          {"live", static_cast<int64_t>(stats.live)}};
}

Dictionary CopiedOf(int index) {
  const Device* device = GetDevice(index);
  return {{"in", device->copied_in.load()}, {"out", device->copied_out.load()}};
}

std::vector<std::shared_ptr<KernelFunction>> KernelsOf(const ffi::Module& root) {
  std::vector<std::shared_ptr<KernelFunction>> kernels;
  for (const OpenCLModule* module : FindOpenCLModules(root)) {
    kernels.insert(kernels.end(), module->kernels().begin(), module->kernels().end());
  }
  return kernels;
}

/*! \brief Build every kernel now, instead of at its first launch. */
void BuildAll(const ffi::Module& root, int index) {
  Device* device = GetDevice(index);
  for (const auto& kernel : KernelsOf(root)) kernel->On(device);
#ifdef __GLIBC__
  // Drivers that are compilers, as pocl is, free tens of MiB here that the C library would keep.
  malloc_trim(0);
#endif
}

/*! \brief Kernels that must be launched in larger groups than the driver can run them in. */
ffi::Array<ffi::String> TooLarge(const ffi::Module& root, int index) {
  Device* device = GetDevice(index);
  ffi::Array<ffi::String> names;
  // NVIDIA's says 256 of every kernel, and compiles each for the group that it requires: an H100
  // (driver 580.159.04) runs 1,024 work-items where it had said 256.
  if (device->info.vendor.find("NVIDIA") != std::string::npos) return names;
  for (const auto& function : KernelsOf(root)) {
    const Kernel* kernel = function->On(device);
    size_t items = 1;  // "0 0 0" where any group will do
    for (size_t size : kernel->RequiredWorkGroupSize()) items *= size;
    if (items > kernel->Info(CL_KERNEL_WORK_GROUP_SIZE)) names.push_back(function->name());
  }
  return names;
}

ffi::Bytes SavePrograms(const ffi::Module& root, int index) {
  Device* device = GetDevice(index);
  std::string pack;
  std::set<const Program*> saved;
  for (const auto& kernel : KernelsOf(root)) {
    const auto& program = kernel->On(device)->program;
    if (!saved.insert(program.get()).second) continue;
    const std::string binary = program->Binary();
    if (!binary.empty()) pack += ProgramStore::Entry(program->Key(), binary);
  }
  return ffi::Bytes(std::move(pack));
}

Dictionary ProgramStats() {
  const ProgramStore::Stats stats = ProgramStore::Global().stats();
  return {{"built", stats.built},
          {"from_disk", stats.from_disk},
          {"from_artifact", stats.from_artifact},
          {"stored", stats.stored},
          {"damaged", stats.damaged},
          {"waiting", stats.waiting}};
}

Dictionary CommandBuffersOf(int index) {
  const CommandBuffers& extension = GetDevice(index)->command_buffers;
  const CommandBuffers::Stats stats = extension.stats();
  return {{"missing", ffi::String(extension.missing())},
          {"simultaneous", extension.simultaneous()},
          {"recorded", stats.recorded},
          {"launches", stats.launches},
          {"replayed", stats.replayed},
          {"plain", stats.plain},
          {"failed", stats.failed}};
}

ffi::Array<Dictionary> StopProfiling(int index) {
  ffi::Array<Dictionary> commands;
  for (const CommandRecord& record : GetDevice(index)->streams.StopRecording()) {
    commands.push_back({{"name", ffi::String(record.name)},
                        {"kind", ffi::String(record.is_kernel ? "kernel" : "copy")},
                        {"queued", static_cast<int64_t>(record.queued)},
                        {"submitted", static_cast<int64_t>(record.submitted)},
                        {"start", static_cast<int64_t>(record.start)},
                        {"end", static_cast<int64_t>(record.end)}});
  }
  return commands;
}

void Register() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("device_api.opencl", [] { return static_cast<void*>(OpenCLDeviceAPI()); })
      .def("runtime.timer.opencl", CreateTimer)
      .def("ffi.Module.create.opencl",
           [](ffi::Bytes code, ffi::String format, FunctionTable functions, SourceTable sources) {
             return ffi::Module(ffi::make_object<OpenCLModule>(
                 std::move(code), std::move(format), std::move(functions), std::move(sources)));
           })
      .def("ffi.Module.load_from_bytes.opencl", OpenCLModule::LoadFromBytes)
      .def("tvm_edge.opencl.join", OpenCLModule::Join)
      .def("tvm_edge.opencl.status", Status)
      .def("tvm_edge.opencl.device_info", DeviceInfoOf)
      .def("tvm_edge.opencl.kernel_info", KernelInfo)
      .def("tvm_edge.opencl.memory", MemoryOf)
      .def("tvm_edge.opencl.reset_peak", [](int index) { GetDevice(index)->memory.ResetPeak(); })
      .def("tvm_edge.opencl.release_memory",
           [](int index) { return static_cast<int64_t>(GetDevice(index)->memory.Release()); })
      .def("tvm_edge.opencl.copied", CopiedOf)
      .def("tvm_edge.opencl.host_view", HostView)
      .def("tvm_edge.opencl.borrow", Borrow)
      .def("tvm_edge.opencl.import_host_memory", ImportHostMemory)
      .def("tvm_edge.opencl.import_buffer", ImportBuffer)
      .def("tvm_edge.opencl.import_dma_buf", ImportDmaBuf)
      .def("tvm_edge.opencl.context",
           [](int index) { return static_cast<void*>(GetDevice(index)->context); })
      .def("tvm_edge.opencl.device",
           [](int index) { return static_cast<void*>(GetDevice(index)->id); })
      // TVM's CUDA graphs take in calls of functions by other names.
      .def("vm.builtin.tvm_edge.read_on_host", ReadOnHost)
      .def("vm.builtin.tvm_edge.write_on_host", WriteOnHost)
      .def("vm.builtin.tvm_edge.hand_over", HandOver)
      .def("vm.builtin.tvm_edge.start_read", StartRead)
      .def("vm.builtin.tvm_edge.finish_read", FinishRead)
      .def("vm.builtin.tvm_edge.start_write", StartWrite)
      .def("vm.builtin.tvm_edge.finish_write", FinishWrite)
      .def("tvm_edge.opencl.profile_start",
           [](int index) { GetDevice(index)->streams.StartRecording(); })
      .def("tvm_edge.opencl.profile_stop", StopProfiling)
      .def("tvm_edge.opencl.build", BuildAll)
      .def("tvm_edge.opencl.too_large_kernels", TooLarge)
      .def("tvm_edge.opencl.save_programs", SavePrograms)
      .def("tvm_edge.opencl.load_programs",
           [](const ffi::Bytes& pack) {
             ProgramStore::Global().AddPack(std::string_view(pack.data(), pack.size()));
           })
      .def("tvm_edge.opencl.program_stats", ProgramStats)
      .def("tvm_edge.opencl.command_buffers", CommandBuffersOf)
      .def("tvm_edge.opencl.recording_failure",
           [](int index) { return ffi::String(GetDevice(index)->command_buffers.TakeFailure()); })
      .def_packed("tvm_edge.opencl.run_or_capture", RunOrCapture)
      .def_packed("tvm_edge.opencl.get_cached_alloc", GetCachedAlloc);
}

}  // namespace
}  // namespace tvm_edge::opencl

/*!
 * \brief Add the functions to TVM's registry, once. Called by tvm_edge/opencl/_autoload.py.
 *
 * Not a static initialiser: registering a name twice ends the process, and a TVM that was built
 * with OpenCL has device_api.opencl already.
 * \return 1 if this library provides OpenCL from now on, 0 if TVM has it.
 */
extern "C" __attribute__((visibility("default"))) int TvmEdgeOpenCLRegister() {
  static std::once_flag once;
  static bool ours = false;
  std::call_once(once, [] {
    if (tvm::ffi::Function::GetGlobal("device_api.opencl").has_value()) return;
    tvm_edge::opencl::Register();
    ours = true;
  });
  return ours ? 1 : 0;
}
