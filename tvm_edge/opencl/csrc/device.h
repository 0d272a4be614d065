// OpenCL devices: found once, ordered, chosen by TVM_EDGE_OPENCL, each with its memory and streams.
#ifndef TVM_EDGE_OPENCL_DEVICE_H_
#define TVM_EDGE_OPENCL_DEVICE_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#include "command_buffer.h"
#include "memory.h"
#include "program.h"
#include "stream.h"

namespace tvm_edge::opencl {

/*! \brief How memory is allocated on a device. */
enum class MemoryKind {
  kBuffer,     // cl_mem in the device's own memory
  kMapped,     // cl_mem in memory that the host maps without a copy
  kSVMCoarse,  // shared virtual memory; the host maps it before use
  kSVMFine,    // shared virtual memory that the host reads and writes at any time
};

const char* MemoryKindName(MemoryKind kind);

/*! \brief What a device says of itself; sizes in bytes. */
struct DeviceInfo {
  std::string platform_name, platform_version;
  std::string name, vendor, version, driver, extensions;
  cl_bitfield type = 0;
  int version_number = 100;  // 120 for OpenCL 1.2
  cl_uint compute_units = 1;
  size_t max_work_group_size = 1;
  std::vector<size_t> max_work_item_sizes;
  cl_ulong local_memory = 0;
  cl_uint local_memory_kind = 0;
  cl_ulong global_memory = 0;
  cl_ulong max_allocation = 0;
  cl_uint cache_line = 0;
  cl_ulong cache_size = 0;
  cl_uint native_float_width = 0;  // lanes
  cl_uint clock_mhz = 0;
  size_t parameter_bytes = 0;
  cl_uint address_alignment = 1;
  bool unified_memory = false;
  cl_bitfield svm = 0;
  cl_bitfield single_precision = 0;
  cl_uint warp_size = 0;
  cl_uint registers = 0;
  std::vector<size_t> sub_group_sizes;

  const char* type_name() const;
  /*! \brief What programs are built with. */
  std::string build_options() const;
  /*! \brief Whether an extension is in the list, by its whole name. */
  bool has(const std::string& extension) const;
};

/*! \brief A device in use, with its own context. Lives as long as the process. */
class Device {
 public:
  Device(cl_platform_id platform, cl_device_id device, DeviceInfo info);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /*! \brief Number and name, for messages. */
  std::string Describe() const;
  /*! \brief Throw if an earlier command lost the device. */
  void CheckUsable() const;

  int index = 0;  // TVM's device id
  const cl_platform_id platform;
  const cl_device_id id;
  const DeviceInfo info;
  cl_context context = nullptr;
  MemoryKind memory_kind = MemoryKind::kBuffer;
  /*! \brief Launches between two checkpoints of a stream: a quarter of what may be in flight. */
  const size_t checkpoint_interval;
  std::atomic<bool> lost{false};
  std::atomic<int64_t> copied_in{0}, copied_out{0};  // bytes, from and to the host

  Memory memory;
  Streams streams;
  Programs programs;
  CommandBuffers command_buffers;
};

/*! \brief A device that was found, used or not. */
struct Candidate {
  cl_platform_id platform;
  cl_device_id device;
  DeviceInfo info;
  int platform_index, device_index;  // as the library lists them
  bool chosen;
};

/*! \brief All devices of the machine. */
struct Devices {
  std::vector<Candidate> candidates;  // GPUs, then accelerators, then CPUs
  std::vector<Candidate*> chosen;     // index = TVM's device id
  std::string error;                  // why `chosen` is empty
};

/*! \brief The devices, looked for at the first call. Throws after a fork. */
const Devices& AllDevices();

/*! \brief Device `index`, opened at the first call. Throws RuntimeError if there is none. */
Device* GetDevice(int index);

/*! \brief The same without opening it: null if it was not used yet. Never throws. */
Device* OpenedDevice(int index) noexcept;

/*! \brief Whether this process is a fork of one that had initialised OpenCL. */
bool Forked() noexcept;

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_DEVICE_H_
