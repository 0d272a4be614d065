/* Programs, kernels, their launches, and events. */
#include "shim.h"

/* Programs whose build was made to fail, for the status and the log. */
static _Atomic(handle) failed_program;

MAKES(clCreateProgramWithSource,
      (handle context, cl_uint n, const char **source, const size_t *lengths, cl_int *error),
      (context, n, source, lengths, error), live[PROGRAMS])

EXPORT handle clCreateProgramWithBinary(handle context, cl_uint n, const handle *list,
                                        const size_t *lengths, const unsigned char **code,
                                        cl_int *status, cl_int *error) {
  REAL(handle, clCreateProgramWithBinary,
       (handle, cl_uint, const handle *, const size_t *, const unsigned char **, cl_int *,
        cl_int *));
  cl_int failed = fault("clCreateProgramWithBinary");
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  handle own[MAX_DEVICES];
  for (cl_uint i = 0; i < n && i < MAX_DEVICES; ++i) own[i] = real_device(list[i]);
  handle made = call(context, n, own, lengths, code, status, error);
  if (made) atomic_fetch_add(&live[PROGRAMS], 1);
  return made;
}

typedef void (*program_notify)(handle, void *);

EXPORT cl_int clBuildProgram(handle program, cl_uint n, const handle *list, const char *options,
                             program_notify notify, void *user) {
  REAL(cl_int, clBuildProgram,
       (handle, cl_uint, const handle *, const char *, program_notify, void *));
  cl_int failed = fault("clBuildProgram");
  if (failed) {
    atomic_store(&failed_program, program);
    return failed;
  }
#ifdef SHIM_OPENCL_12
  if (options && (strstr(options, "-cl-std=CL2") || strstr(options, "-cl-std=CL3")))
    return CL_INVALID_BUILD_OPTIONS;
#endif
  handle own[MAX_DEVICES];
  cl_uint kept = real_devices(n, list, own);
  return call(program, kept, kept ? own : NULL, options, notify, user);
}

EXPORT cl_int clGetProgramBuildInfo(handle program, handle device, cl_uint what, size_t room,
                                    void *out, size_t *needed) {
  REAL(cl_int, clGetProgramBuildInfo, (handle, handle, cl_uint, size_t, void *, size_t *));
  if (program == atomic_load(&failed_program)) {
    cl_int status = CL_BUILD_ERROR;
    if (what == CL_PROGRAM_BUILD_STATUS) return answer(&status, sizeof status, room, out, needed);
    if (what == CL_PROGRAM_BUILD_LOG)
      return answer_text("shim: the build was told to fail", room, out, needed);
  }
  return call(program, real_device(device), what, room, out, needed);
}

FORWARD(clGetProgramInfo, (handle program, cl_uint what, size_t room, void *out, size_t *needed),
        (program, what, room, out, needed))

EXPORT cl_int clReleaseProgram(handle program) {
  REAL(cl_int, clReleaseProgram, (handle));
  /* Nobody here retains programs, so this ends it and the handle may be given out again. */
  handle none = program;
  atomic_compare_exchange_strong(&failed_program, &none, NULL);
  cl_int code = call(program);
  if (!code) atomic_fetch_sub(&live[PROGRAMS], 1);
  return code;
}

EXPORT handle clCreateKernel(handle program, const char *name, cl_int *error) {
  REAL(handle, clCreateKernel, (handle, const char *, cl_int *));
  cl_int failed = fault("clCreateKernel");
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  handle made = call(program, name, error);
  if (made) {
    atomic_fetch_add(&live[KERNELS], 1);
    atomic_fetch_add(&total[MADE_KERNELS], 1);
  }
  return made;
}

COUNTED(clReleaseKernel, (handle kernel), (kernel), live[KERNELS], -1)
COUNTED(clSetKernelArg, (handle kernel, cl_uint at, size_t bytes, const void *value),
        (kernel, at, bytes, value), total[ARGUMENTS], 1)

EXPORT cl_int clGetKernelWorkGroupInfo(handle kernel, handle device, cl_uint what, size_t room,
                                       void *out, size_t *needed) {
  REAL(cl_int, clGetKernelWorkGroupInfo, (handle, handle, cl_uint, size_t, void *, size_t *));
  cl_int failed = fault("clGetKernelWorkGroupInfo");
  if (failed) return failed;
  cl_int code = call(kernel, real_device(device), what, room, out, needed);
  size_t most = (size_t)atomic_load(&setting[KERNEL_ITEMS]);
  if (!most) most = (size_t)atomic_load(&setting[NVIDIA_ITEMS]);
  if (!code && what == CL_KERNEL_WORK_GROUP_SIZE && out && most && *(size_t *)out > most)
    *(size_t *)out = most;
  return code;
}

/* Launches not known to have ended, each with a reference of the shim's own. Asked for their state
 * rather than told by a callback: a callback may run after the wait for its event has returned. */
#define MAX_FLYING 8192
static cl_event flying[MAX_FLYING];
static int n_flying;
static pthread_mutex_t flying_lock = PTHREAD_MUTEX_INITIALIZER;

static int in_flight(void) {
  cl_int (*get_info)(cl_event, cl_uint, size_t, void *, size_t *) = real("clGetEventInfo");
  cl_int (*release)(cl_event) = real("clReleaseEvent");
  int kept = 0;
  for (int i = 0; i < n_flying; ++i) {
    cl_int status = CL_COMPLETE;
    get_info(flying[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    if (status > CL_COMPLETE)
      flying[kept++] = flying[i];
    else
      release(flying[i]);
  }
  return n_flying = kept;
}

EXPORT cl_int clEnqueueNDRangeKernel(handle queue, handle kernel, cl_uint rank,
                                     const size_t *offset, const size_t *global,
                                     const size_t *local, WAIT) {
  REAL(cl_int, clEnqueueNDRangeKernel,
       (handle, handle, cl_uint, const size_t *, const size_t *, const size_t *, WAIT));
  cl_int failed = fault("clEnqueueNDRangeKernel");
  if (failed) return failed;
#ifdef SHIM_OPENCL_12
  for (cl_uint i = 0; local && i < rank; ++i)
    if (!local[i] || global[i] % local[i]) return CL_INVALID_WORK_GROUP_SIZE;
#endif
  size_t items = 1, most = (size_t)atomic_load(&setting[KERNEL_ITEMS]);
  for (cl_uint i = 0; local && i < rank; ++i) items *= local[i];
  if (most && items > most) return CL_INVALID_WORK_GROUP_SIZE;
  int track = atomic_load(&setting[TRACK]) != 0;
  if (!track) {
    cl_int code = call(queue, kernel, rank, offset, global, local, WAIT_ARGS);
    if (code) return code;
    atomic_fetch_add(&total[LAUNCHES], 1);
    if (event) made_event();
    return code;
  }
  pthread_mutex_lock(&flying_lock);
  long limit = atomic_load(&setting[QUEUE_LIMIT]);
  cl_int code = limit && in_flight() >= limit ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
  cl_event own = NULL;
  if (!code) code = call(queue, kernel, rank, offset, global, local, n_wait, wait, &own);
  if (!code) {
    cl_int (*retain)(cl_event) = real("clRetainEvent");
    atomic_fetch_add(&total[LAUNCHES], 1);
    if (event) {
      retain(own);
      *event = own;
      made_event();
    }
    if (n_flying == MAX_FLYING) abort();
    flying[n_flying++] = own;
    long now = in_flight();
    if (now > atomic_load(&total[MAX_IN_FLIGHT])) atomic_store(&total[MAX_IN_FLIGHT], now);
  }
  pthread_mutex_unlock(&flying_lock);
  return code;
}

#ifndef SHIM_OPENCL_12

COUNTED(clSetKernelArgSVMPointer, (handle kernel, cl_uint at, const void *value),
        (kernel, at, value), total[ARGUMENTS], 1)

#endif

/* ---- events ---- */

ENQUEUE(clEnqueueMarkerWithWaitList, (handle queue, WAIT), (queue, WAIT_ARGS))
ENQUEUE(clEnqueueBarrierWithWaitList, (handle queue, WAIT), (queue, WAIT_ARGS))
FORWARD(clWaitForEvents, (cl_uint n, const cl_event *list), (n, list))
COUNTED(clReleaseEvent, (cl_event event), (event), live[EVENTS], -1)
FORWARD(clGetEventProfilingInfo,
        (cl_event event, cl_uint what, size_t room, void *out, size_t *needed),
        (event, what, room, out, needed))
