/* cl_khr_command_buffer: no symbols, a platform hands the functions out. */
#include "shim.h"

#ifndef SHIM_OPENCL_12

static handle (*real_create)(cl_uint, const handle *, const cl_bitfield *, cl_int *);
static cl_int (*real_release)(handle);
static cl_int (*real_finalize)(handle);
static cl_int (*real_launch)(handle, handle, const void *, handle, cl_uint, const size_t *,
                             const size_t *, const size_t *, cl_uint, const cl_uint *, cl_uint *,
                             void **);
static cl_int (*real_replay)(cl_uint, handle *, handle, WAIT);

static handle create_commands(cl_uint n, const handle *queues, const cl_bitfield *properties,
                              cl_int *error) {
  cl_int failed = fault("clCreateCommandBufferKHR");
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  handle made = real_create(n, queues, properties, error);
  if (made) atomic_fetch_add(&live[COMMAND_BUFFERS], 1);
  return made;
}

static cl_int release_commands(handle commands) {
  cl_int code = real_release(commands);
  if (!code) atomic_fetch_sub(&live[COMMAND_BUFFERS], 1);
  return code;
}

static cl_int finalize_commands(handle commands) {
  cl_int failed = fault("clFinalizeCommandBufferKHR");
  return failed ? failed : real_finalize(commands);
}

static cl_int record_launch(handle commands, handle queue, const void *properties, handle kernel,
                            cl_uint rank, const size_t *offset, const size_t *global,
                            const size_t *local, cl_uint n_wait, const cl_uint *wait,
                            cl_uint *point, void **command) {
  cl_int failed = fault("clCommandNDRangeKernelKHR");
  if (failed) return failed;
  cl_int code = real_launch(commands, queue, properties, kernel, rank, offset, global, local,
                            n_wait, wait, point, command);
  if (!code) atomic_fetch_add(&total[RECORDED], 1);
  return code;
}

static cl_int replay_commands(cl_uint n, handle *queues, handle commands, WAIT) {
  cl_int failed = fault("clEnqueueCommandBufferKHR");
  if (failed) return failed;
  cl_int code = real_replay(n, queues, commands, WAIT_ARGS);
  if (!code) {
    atomic_fetch_add(&total[REPLAYS], 1);
    if (event) made_event();
  }
  return code;
}

static const struct {
  const char *name;
  void *real; /* where the real function goes */
  void *ours;
} COMMAND_BUFFER[] = {
    {"clCreateCommandBufferKHR", &real_create, (void *)create_commands},
    {"clReleaseCommandBufferKHR", &real_release, (void *)release_commands},
    {"clFinalizeCommandBufferKHR", &real_finalize, (void *)finalize_commands},
    {"clCommandNDRangeKernelKHR", &real_launch, (void *)record_launch},
    {"clEnqueueCommandBufferKHR", &real_replay, (void *)replay_commands},
};

#endif

EXPORT void *clGetExtensionFunctionAddressForPlatform(handle platform, const char *name) {
  REAL(void *, clGetExtensionFunctionAddressForPlatform, (handle, const char *));
#ifdef SHIM_OPENCL_12
  /* Extensions of a 1.2 device may be there; this one pretends to have none of them. */
  (void)platform;
  (void)name;
  (void)call;
  return NULL;
#else
  void *import = import_function(name);
  if (import) return import;
  void *found_there = call(pretended_platform(platform) >= 0 ? base_platform : platform, name);
  for (int i = 0; i < (int)(sizeof COMMAND_BUFFER / sizeof *COMMAND_BUFFER); ++i) {
    if (strcmp(COMMAND_BUFFER[i].name, name)) continue;
    if (!found_there || atomic_load(&setting[NO_ENTRY_POINTS])) return NULL;
    memcpy(COMMAND_BUFFER[i].real, &found_there, sizeof found_there);
    return COMMAND_BUFFER[i].ours;
  }
  return found_there;
#endif
}
