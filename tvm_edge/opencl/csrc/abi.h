// The part of the OpenCL ABI this runtime uses: types, constants and entry points, as the Khronos
// specification fixes them for every implementation. Written out here because neither the TVM wheel
// nor pip brings the Khronos headers, and a build should need nothing but a compiler.
#ifndef TVM_EDGE_OPENCL_ABI_H_
#define TVM_EDGE_OPENCL_ABI_H_

#include <cstddef>
#include <cstdint>

namespace tvm_edge::opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;
using cl_info = cl_uint;

using cl_platform_id = struct PlatformTag*;
using cl_device_id = struct DeviceTag*;
using cl_context = struct ContextTag*;
using cl_command_queue = struct QueueTag*;
using cl_mem = struct MemTag*;
using cl_program = struct ProgramTag*;
using cl_kernel = struct KernelTag*;
using cl_event = struct EventTag*;
using cl_command_buffer_khr = struct CommandBufferTag*;

struct cl_buffer_region {
  size_t origin;
  size_t size;
};

struct cl_name_version {
  cl_uint version;  // 10 bits major, 10 minor, 12 patch
  char name[64];
};

// Status codes that get a meaning of their own; error.cc names the others.
constexpr cl_int CL_SUCCESS = 0;
constexpr cl_int CL_DEVICE_NOT_AVAILABLE = -2;
constexpr cl_int CL_MEM_OBJECT_ALLOCATION_FAILURE = -4;
constexpr cl_int CL_OUT_OF_RESOURCES = -5;
constexpr cl_int CL_OUT_OF_HOST_MEMORY = -6;
constexpr cl_int CL_INVALID_COMMAND_QUEUE = -36;
constexpr cl_int CL_INVALID_WORK_GROUP_SIZE = -54;
constexpr cl_int CL_INVALID_WORK_ITEM_SIZE = -55;
constexpr cl_int CL_INVALID_OPERATION = -59;
constexpr cl_int CL_INVALID_BUFFER_SIZE = -61;
constexpr cl_int CL_PLATFORM_NOT_FOUND_KHR = -1001;
constexpr cl_int CL_INVALID_COMMAND_BUFFER_KHR = -1138;
constexpr cl_int CL_INCOMPATIBLE_COMMAND_QUEUE_KHR = -1140;
constexpr cl_int CL_UNKNOWN_ERROR_NV = -9999;

constexpr cl_bool CL_TRUE = 1;

constexpr cl_info CL_PLATFORM_VERSION = 0x0901;
constexpr cl_info CL_PLATFORM_NAME = 0x0902;

constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

constexpr cl_info CL_DEVICE_TYPE = 0x1000;
constexpr cl_info CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_info CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_info CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_info CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_info CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_info CL_DEVICE_MAX_PARAMETER_SIZE = 0x1017;
constexpr cl_info CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019;
constexpr cl_info CL_DEVICE_SINGLE_FP_CONFIG = 0x101B;
constexpr cl_info CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE = 0x101D;
constexpr cl_info CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
constexpr cl_info CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
constexpr cl_info CL_DEVICE_LOCAL_MEM_TYPE = 0x1022;
constexpr cl_info CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_info CL_DEVICE_AVAILABLE = 0x1027;
constexpr cl_info CL_DEVICE_NAME = 0x102B;
constexpr cl_info CL_DEVICE_VENDOR = 0x102C;
constexpr cl_info CL_DRIVER_VERSION = 0x102D;
constexpr cl_info CL_DEVICE_VERSION = 0x102F;
constexpr cl_info CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_info CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035;
constexpr cl_info CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A;
constexpr cl_info CL_DEVICE_SVM_CAPABILITIES = 0x1053;
constexpr cl_info CL_DEVICE_EXTENSIONS_WITH_VERSION = 0x1060;
constexpr cl_info CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR = 0x12A9;
constexpr cl_info CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR = 0x12AA;
constexpr cl_info CL_DEVICE_REGISTERS_PER_BLOCK_NV = 0x4002;
constexpr cl_info CL_DEVICE_WARP_SIZE_NV = 0x4003;
constexpr cl_info CL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043;
constexpr cl_info CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108;

constexpr cl_bitfield CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7;
constexpr cl_bitfield CL_DEVICE_SVM_COARSE_GRAIN_BUFFER = 1 << 0;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;

constexpr intptr_t CL_CONTEXT_PLATFORM = 0x1084;

constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
constexpr cl_ulong CL_QUEUE_PROPERTIES = 0x1093;

constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_MEM_READ_ONLY = 1 << 2;
constexpr cl_bitfield CL_MEM_USE_HOST_PTR = 1 << 3;
constexpr cl_bitfield CL_MEM_ALLOC_HOST_PTR = 1 << 4;
constexpr cl_bitfield CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
constexpr cl_uint CL_BUFFER_CREATE_TYPE_REGION = 0x1220;
constexpr cl_info CL_MEM_TYPE = 0x1100;
constexpr cl_info CL_MEM_SIZE = 0x1102;
constexpr cl_info CL_MEM_CONTEXT = 0x1106;
constexpr cl_uint CL_MEM_OBJECT_BUFFER = 0x10F0;
constexpr intptr_t CL_IMPORT_TYPE_ARM = 0x40B2;
constexpr intptr_t CL_IMPORT_TYPE_DMA_BUF_ARM = 0x40B4;
constexpr cl_ulong CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR = 0x2067;
constexpr cl_bitfield CL_MAP_READ = 1 << 0;
constexpr cl_bitfield CL_MAP_WRITE = 1 << 1;

constexpr cl_bitfield CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR = 1 << 2;
constexpr cl_ulong CL_COMMAND_BUFFER_FLAGS_KHR = 0x1293;
constexpr cl_bitfield CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR = 1 << 0;

constexpr cl_info CL_PROGRAM_BINARY_SIZES = 0x1165;
constexpr cl_info CL_PROGRAM_BINARIES = 0x1166;
constexpr cl_info CL_PROGRAM_BUILD_LOG = 0x1183;

constexpr cl_info CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;
constexpr cl_info CL_KERNEL_COMPILE_WORK_GROUP_SIZE = 0x11B1;
constexpr cl_info CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2;
constexpr cl_info CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE = 0x11B3;
constexpr cl_info CL_KERNEL_PRIVATE_MEM_SIZE = 0x11B4;

constexpr cl_info CL_PROFILING_COMMAND_QUEUED = 0x1280;
constexpr cl_info CL_PROFILING_COMMAND_SUBMIT = 0x1281;
constexpr cl_info CL_PROFILING_COMMAND_START = 0x1282;
constexpr cl_info CL_PROFILING_COMMAND_END = 0x1283;

// X(name, return type, parameters): what every OpenCL 1.2 library has.
#define TVM_EDGE_OPENCL_CORE(X)                                                                    \
  X(clGetPlatformIDs, cl_int, (cl_uint, cl_platform_id*, cl_uint*))                                \
  X(clGetPlatformInfo, cl_int, (cl_platform_id, cl_info, size_t, void*, size_t*))                  \
  X(clGetDeviceIDs, cl_int, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))       \
  X(clGetDeviceInfo, cl_int, (cl_device_id, cl_info, size_t, void*, size_t*))                      \
  X(clCreateContext, cl_context,                                                                   \
    (const intptr_t*, cl_uint, const cl_device_id*,                                                \
     void (*)(const char*, const void*, size_t, void*), void*, cl_int*))                           \
  X(clCreateCommandQueue, cl_command_queue, (cl_context, cl_device_id, cl_bitfield, cl_int*))      \
  X(clReleaseCommandQueue, cl_int, (cl_command_queue))                                             \
  X(clCreateBuffer, cl_mem, (cl_context, cl_bitfield, size_t, void*, cl_int*))                     \
  X(clCreateSubBuffer, cl_mem, (cl_mem, cl_bitfield, cl_uint, const void*, cl_int*))               \
  X(clRetainMemObject, cl_int, (cl_mem))                                                           \
  X(clReleaseMemObject, cl_int, (cl_mem))                                                          \
  X(clGetMemObjectInfo, cl_int, (cl_mem, cl_info, size_t, void*, size_t*))                         \
  X(clCreateProgramWithSource, cl_program,                                                         \
    (cl_context, cl_uint, const char**, const size_t*, cl_int*))                                   \
  X(clCreateProgramWithBinary, cl_program,                                                         \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*,      \
     cl_int*))                                                                                     \
  X(clReleaseProgram, cl_int, (cl_program))                                                        \
  X(clBuildProgram, cl_int,                                                                        \
    (cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*))   \
  X(clGetProgramInfo, cl_int, (cl_program, cl_info, size_t, void*, size_t*))                       \
  X(clGetProgramBuildInfo, cl_int, (cl_program, cl_device_id, cl_info, size_t, void*, size_t*))    \
  X(clCreateKernel, cl_kernel, (cl_program, const char*, cl_int*))                                 \
  X(clReleaseKernel, cl_int, (cl_kernel))                                                          \
  X(clSetKernelArg, cl_int, (cl_kernel, cl_uint, size_t, const void*))                             \
  X(clGetKernelWorkGroupInfo, cl_int, (cl_kernel, cl_device_id, cl_info, size_t, void*, size_t*))  \
  X(clWaitForEvents, cl_int, (cl_uint, const cl_event*))                                           \
  X(clReleaseEvent, cl_int, (cl_event))                                                            \
  X(clGetEventProfilingInfo, cl_int, (cl_event, cl_info, size_t, void*, size_t*))                  \
  X(clFlush, cl_int, (cl_command_queue))                                                           \
  X(clFinish, cl_int, (cl_command_queue))                                                          \
  X(clEnqueueReadBuffer, cl_int,                                                                   \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*,           \
     cl_event*))                                                                                   \
  X(clEnqueueWriteBuffer, cl_int,                                                                  \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*,     \
     cl_event*))                                                                                   \
  X(clEnqueueCopyBuffer, cl_int,                                                                   \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*,           \
     cl_event*))                                                                                   \
  X(clEnqueueMapBuffer, void*,                                                                     \
    (cl_command_queue, cl_mem, cl_bool, cl_bitfield, size_t, size_t, cl_uint, const cl_event*,     \
     cl_event*, cl_int*))                                                                          \
  X(clEnqueueUnmapMemObject, cl_int,                                                               \
    (cl_command_queue, cl_mem, void*, cl_uint, const cl_event*, cl_event*))                        \
  X(clEnqueueNDRangeKernel, cl_int,                                                                \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint,   \
     const cl_event*, cl_event*))                                                                  \
  X(clEnqueueMarkerWithWaitList, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))  \
  X(clEnqueueBarrierWithWaitList, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))

// What a library may lack: OpenCL 2.0, and the way to extensions in drivers opened without a loader.
// A pointer here may be null, and a loader has these symbols even when the driver behind it does not:
// call them only for a device that reports the feature.
#define TVM_EDGE_OPENCL_OPTIONAL(X)                                                                \
  X(clGetExtensionFunctionAddressForPlatform, void*, (cl_platform_id, const char*))                \
  X(clCreateCommandQueueWithProperties, cl_command_queue,                                          \
    (cl_context, cl_device_id, const cl_ulong*, cl_int*))                                          \
  X(clCreateBufferWithProperties, cl_mem,                                                          \
    (cl_context, const cl_ulong*, cl_bitfield, size_t, void*, cl_int*))                            \
  X(clSVMAlloc, void*, (cl_context, cl_bitfield, size_t, cl_uint))                                 \
  X(clSVMFree, void, (cl_context, void*))                                                          \
  X(clSetKernelArgSVMPointer, cl_int, (cl_kernel, cl_uint, const void*))                           \
  X(clEnqueueSVMMemcpy, cl_int,                                                                    \
    (cl_command_queue, cl_bool, void*, const void*, size_t, cl_uint, const cl_event*, cl_event*))  \
  X(clEnqueueSVMMap, cl_int,                                                                       \
    (cl_command_queue, cl_bool, cl_bitfield, void*, size_t, cl_uint, const cl_event*, cl_event*))  \
  X(clEnqueueSVMUnmap, cl_int, (cl_command_queue, void*, cl_uint, const cl_event*, cl_event*))

// What is used of cl_khr_command_buffer; a platform is asked for each. The extension changed between
// 0.9.0 and 1.0, in the commands that copy and fill: these five have had the same parameters in all
// of its versions (the properties of a launch, null here, changed their type's name).
#define TVM_EDGE_OPENCL_COMMAND_BUFFER(X)                                                          \
  X(clCreateCommandBufferKHR, cl_command_buffer_khr,                                               \
    (cl_uint, const cl_command_queue*, const cl_ulong*, cl_int*))                                  \
  X(clFinalizeCommandBufferKHR, cl_int, (cl_command_buffer_khr))                                   \
  X(clReleaseCommandBufferKHR, cl_int, (cl_command_buffer_khr))                                    \
  X(clCommandNDRangeKernelKHR, cl_int,                                                             \
    (cl_command_buffer_khr, cl_command_queue, const void*, cl_kernel, cl_uint, const size_t*,      \
     const size_t*, const size_t*, cl_uint, const cl_uint*, cl_uint*, void**))                     \
  X(clEnqueueCommandBufferKHR, cl_int,                                                             \
    (cl_uint, cl_command_queue*, cl_command_buffer_khr, cl_uint, const cl_event*, cl_event*))

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_ABI_H_
