/* Platforms, devices, contexts and queues. */
#include "shim.h"

EXPORT cl_int clGetPlatformIDs(cl_uint room, handle *out, cl_uint *count) {
  REAL(cl_int, clGetPlatformIDs, (cl_uint, handle *, cl_uint *));
  cl_int failed = fault("clGetPlatformIDs");
  if (failed) return failed;
  if (atomic_load(&setting[NO_PLATFORMS])) {
    if (count) *count = 0;
    return CL_SUCCESS;
  }
  if (!n_platforms) return call(room, out, count);
  if (count) *count = n_platforms;
  for (cl_uint i = 0; out && i < room && i < (cl_uint)n_platforms; ++i)
    out[i] = (handle)&platform_handles[i];
  return CL_SUCCESS;
}

EXPORT cl_int clGetPlatformInfo(handle platform, cl_uint what, size_t room, void *out,
                                size_t *needed) {
  REAL(cl_int, clGetPlatformInfo, (handle, cl_uint, size_t, void *, size_t *));
  int at = pretended_platform(platform);
#ifdef SHIM_OPENCL_12
  if (what == CL_PLATFORM_VERSION) return answer_text("OpenCL 1.2 shim", room, out, needed);
  if (what > 0x0904 && what < 0x0910) return CL_INVALID_VALUE;
#endif
  if (at >= 0 && what == CL_PLATFORM_NAME) {
    char name[32];
    snprintf(name, sizeof name, "Shim Platform %d", at);
    return answer_text(name, room, out, needed);
  }
  return call(at >= 0 ? base_platform : platform, what, room, out, needed);
}

EXPORT cl_int clGetDeviceIDs(handle platform, cl_bitfield type, cl_uint room, handle *out,
                             cl_uint *count) {
  REAL(cl_int, clGetDeviceIDs, (handle, cl_bitfield, cl_uint, handle *, cl_uint *));
  cl_int failed = fault("clGetDeviceIDs");
  if (failed) return failed;
  int at = pretended_platform(platform);
  if (at < 0) return call(platform, type, room, out, count);
  cl_uint n = 0;
  for (int i = 0; i < n_devices; ++i) {
    if (devices[i].platform != at || !(devices[i].type & type)) continue;
    if (out && n < room) out[n] = (handle)&devices[i];
    ++n;
  }
  if (count) *count = n;
  return n ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

EXPORT cl_int clGetDeviceInfo(handle device, cl_uint what, size_t room, void *out, size_t *needed) {
  REAL(cl_int, clGetDeviceInfo, (handle, cl_uint, size_t, void *, size_t *));
  cl_int failed = fault("clGetDeviceInfo");
  if (failed) return failed;
#ifdef SHIM_OPENCL_12
  if (what == CL_DEVICE_VERSION) return answer_text("OpenCL 1.2 shim", room, out, needed);
  if (what == CL_DEVICE_OPENCL_C_VERSION)
    return answer_text("OpenCL C 1.2 shim", room, out, needed);
  if (what >= CL_DEVICE_FIRST_20 && what <= CL_DEVICE_LAST_30) return CL_INVALID_VALUE;
#endif
  if (what == CL_DRIVER_VERSION && atomic_load(&setting[STALE_DRIVER]))
    return answer_text("0.shim", room, out, needed);
  if (what == CL_DEVICE_VENDOR && atomic_load(&setting[NVIDIA_ITEMS]))
    return answer_text("NVIDIA Corporation", room, out, needed);
  struct device *at = pretended(device);
  if (what == CL_DEVICE_EXTENSIONS_WITH_VERSION && atomic_load(&setting[COMMAND_BUFFER_MAJOR])) {
    struct {
      uint32_t version;
      char name[64];
    } only = {(uint32_t)atomic_load(&setting[COMMAND_BUFFER_MAJOR]) << 22, "cl_khr_command_buffer"};
    return answer(&only, sizeof only, room, out, needed);
  }
  if (what == CL_DEVICE_COMMAND_BUFFER_CAPABILITIES && atomic_load(&setting[ONE_AT_A_TIME])) {
    cl_bitfield capabilities = 0;
    cl_int code = call(real_device(device), what, sizeof capabilities, &capabilities, NULL);
    capabilities &= ~(cl_bitfield)CL_SIMULTANEOUS_USE;
    return code ? code : answer(&capabilities, sizeof capabilities, room, out, needed);
  }
  if (what == CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES &&
      atomic_load(&setting[ONLY_FOR_PROFILING])) {
    cl_bitfield required = CL_QUEUE_PROFILING;
    return answer(&required, sizeof required, room, out, needed);
  }
  if (what == CL_DEVICE_HOST_UNIFIED_MEMORY && atomic_load(&setting[OWN_MEMORY])) {
    cl_uint no = 0;
    return answer(&no, sizeof no, room, out, needed);
  }
  if (what == CL_DEVICE_EXTENSIONS &&
      (atomic_load(&setting[ARM_IMPORT]) || atomic_load(&setting[KHRONOS_DMA_BUF]))) {
    return answer_text(atomic_load(&setting[ARM_IMPORT])
                           ? "cl_arm_import_memory cl_arm_import_memory_dma_buf"
                           : "cl_khr_external_memory cl_khr_external_memory_dma_buf",
                       room, out, needed);
  }
  if (what == CL_DEVICE_TYPE && atomic_load(&setting[OWN_MEMORY])) {
    cl_bitfield gpu = 4;
    return answer(&gpu, sizeof gpu, room, out, needed);
  }
  if (what == CL_DEVICE_SVM_CAPABILITIES && atomic_load(&setting[COARSE_SVM])) {
    cl_bitfield coarse = 1;
    return answer(&coarse, sizeof coarse, room, out, needed);
  }
  if (!at) return call(device, what, room, out, needed);
  handle platform = (handle)&platform_handles[at->platform];
  switch (what) {
    case CL_DEVICE_TYPE:
      return answer(&at->type, sizeof at->type, room, out, needed);
    case CL_DEVICE_PLATFORM:
      return answer(&platform, sizeof platform, room, out, needed);
    case CL_DEVICE_NAME:
      return answer_text(at->name, room, out, needed);
    default:
      return call(at->real, what, room, out, needed);
  }
}

/* ---- contexts and queues ---- */

typedef void (*context_notify)(const char *, const void *, size_t, void *);

EXPORT handle clCreateContext(const cl_properties *properties, cl_uint n, const handle *list,
                              context_notify notify, void *user, cl_int *error) {
  REAL(handle, clCreateContext,
       (const cl_properties *, cl_uint, const handle *, context_notify, void *, cl_int *));
  cl_int failed = fault("clCreateContext");
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  cl_properties copy[32] = {0};
  for (int i = 0; properties && properties[i] && i < 28; i += 2) {
    copy[i] = properties[i];
    copy[i + 1] = properties[i + 1];
    if (copy[i] == CL_CONTEXT_PLATFORM && pretended_platform((handle)copy[i + 1]) >= 0)
      copy[i + 1] = (cl_properties)base_platform;
  }
  handle own[MAX_DEVICES];
  cl_uint kept = real_devices(n, list, own);
  handle made = call(properties ? copy : NULL, kept, own, notify, user, error);
  if (made) atomic_fetch_add(&live[CONTEXTS], 1);
  return made;
}


MAKES(clCreateCommandQueue,
      (handle context, handle device, cl_bitfield properties, cl_int *error),
      (context, real_device(device), properties, error), live[QUEUES])

COUNTED(clReleaseCommandQueue, (handle queue), (queue), live[QUEUES], -1)
FORWARD(clFlush, (handle queue), (queue))
FORWARD(clFinish, (handle queue), (queue))

#ifndef SHIM_OPENCL_12

EXPORT handle clCreateCommandQueueWithProperties(handle context, handle device,
                                                 const cl_bitfield *properties, cl_int *error) {
  REAL(handle, clCreateCommandQueueWithProperties,
       (handle, handle, const cl_bitfield *, cl_int *));
  cl_int failed = fault("clCreateCommandQueue");
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  handle made = call(context, real_device(device), properties, error);
  if (made) atomic_fetch_add(&live[QUEUES], 1);
  return made;
}

#endif
