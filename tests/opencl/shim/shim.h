/* What the files of the stand-in share; shim.c says what it is. */
#ifndef SHIM_H_
#define SHIM_H_

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is needed of cl.h. No header: a board has none, and TVM's wheel has none. */
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bitfield;
typedef intptr_t cl_properties;
typedef struct opaque *handle;
typedef struct event_opaque *cl_event;

enum {
  CL_SUCCESS = 0,
  CL_DEVICE_NOT_FOUND = -1,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_INVALID_VALUE = -30,
  CL_INVALID_BUILD_OPTIONS = -43,
  CL_INVALID_WORK_GROUP_SIZE = -54,
  CL_PLATFORM_VERSION = 0x0901,
  CL_PLATFORM_NAME = 0x0902,
  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_MEM_READ_WRITE = 1 << 0,
  CL_MEM_USE_HOST_PTR = 1 << 3,
  CL_INVALID_MEM_OBJECT = -38,
  CL_IMPORT_TYPE_ARM = 0x40B2,
  CL_IMPORT_TYPE_DMA_BUF_ARM = 0x40B4,
  CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR = 0x2067,
  CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_PLATFORM = 0x1031,
  CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DEVICE_OPENCL_C_VERSION = 0x103D,
  CL_DEVICE_FIRST_20 = 0x104C,
  CL_DEVICE_SVM_CAPABILITIES = 0x1053,
  CL_DEVICE_LAST_30 = 0x1072,
  CL_CONTEXT_PLATFORM = 0x1084,
  CL_PROGRAM_BUILD_STATUS = 0x1181,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_BUILD_ERROR = -2,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
  CL_COMPLETE = 0,
  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_DEVICE_EXTENSIONS_WITH_VERSION = 0x1060,
  CL_DEVICE_COMMAND_BUFFER_CAPABILITIES = 0x12A9,
  CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES = 0x12AA,
  CL_SIMULTANEOUS_USE = 1 << 2,
  CL_QUEUE_PROFILING = 1 << 1,
};

#define EXPORT __attribute__((visibility("default")))

/* ---- settings, counters, faults (shim.c) ---- */

/* Live references: what was created or retained, less what was released. */
enum live { CONTEXTS, QUEUES, BUFFERS, SVM, PROGRAMS, KERNELS, EVENTS, COMMAND_BUFFERS, LIVES };
extern atomic_long live[LIVES];

/* Calls since the start or the last shim_clear. */
enum total {
  LAUNCHES,
  MAX_IN_FLIGHT,
  ALLOCATIONS,
  MADE_KERNELS,
  MADE_EVENTS,
  ARGUMENTS,
  RECORDED,
  REPLAYS,
  ACQUIRED, /* external memory, and not given back */
  TOTALS
};
extern atomic_long total[TOTALS];

/* no_platforms: success with none. track: follow each launch to its end (max_in_flight).
 * queue_limit: the driver that refuses a launch beyond so many in flight, as Mali's does.
 * stale_driver: another driver version, as after an update.
 * Of cl_khr_command_buffer: command_buffer_major, another version of it; no_entry_points, which a
 * driver may lack all the same; one_at_a_time, no simultaneous use; only_for_profiling, for queues
 * with profiling alone.
 * arm_import, khronos_dma_buf: a driver that takes dma-bufs, which any file that can be mapped is.
 * own_memory: a GPU that does not share the host's. coarse_svm: shared virtual memory that the host
 * must map. */
enum setting {
  NO_PLATFORMS,
  TRACK,
  QUEUE_LIMIT,
  STALE_DRIVER,
  COMMAND_BUFFER_MAJOR,
  NO_ENTRY_POINTS,
  ONE_AT_A_TIME,
  ONLY_FOR_PROFILING,
  KERNEL_ITEMS, /* of a group, for any kernel; 0: as many as the driver says */
  OWN_MEMORY,
  COARSE_SVM,
  ARM_IMPORT,      /* cl_arm_import_memory: 1 with its function, 2 without */
  KHRONOS_DMA_BUF, /* cl_khr_external_memory_dma_buf */
  NVIDIA_ITEMS, /* the vendor is NVIDIA, whose driver says so many of any kernel and runs more */
  SETTINGS
};
extern atomic_long setting[SETTINGS];

int shim_set(const char *key, int value);
int shim_fault(const char *call, int nth, int times, int code);

handle clCreateBuffer(handle context, cl_bitfield flags, size_t bytes, void *host, cl_int *error);
cl_int clEnqueueMarkerWithWaitList(handle queue, cl_uint n_wait, const cl_event *wait,
                                   cl_event *event);

/* The function of an extension that a setting makes a driver have; NULL: none (imports.c). */
void *import_function(const char *name);

/* What a call is told to answer instead; CL_SUCCESS: nothing. */
cl_int fault(const char *call);

/* A call gave out an event, which is a reference. */
void made_event(void);

/* ---- the real library, and handles (library.c) ---- */

#define MAX_DEVICES 16
struct device {
  handle real;
  cl_bitfield type;
  int platform;
  char name[32];
};
extern struct device devices[MAX_DEVICES];
extern int n_devices, n_platforms;
extern char platform_handles[MAX_DEVICES]; /* their addresses are the handles */
extern handle base_platform;

extern pthread_once_t started;
void start(void);
void *real(const char *name);

struct device *pretended(handle device);
handle real_device(handle device);
/* Handles of a list, each real device once: two pretended ones may be the same. */
cl_uint real_devices(cl_uint n, const handle *list, handle *out);
int pretended_platform(handle platform);

cl_int answer(const void *value, size_t bytes, size_t room, void *out, size_t *needed);
cl_int answer_text(const char *text, size_t room, void *out, size_t *needed);

/* ---- entry points ---- */

/* The real function of the same name, looked up once. */
#define REAL(ret, name, params)                                              \
  static _Atomic(void *) found;                                              \
  pthread_once(&started, start);                                             \
  void *symbol = atomic_load_explicit(&found, memory_order_acquire);         \
  if (!symbol) atomic_store_explicit(&found, symbol = real(#name), memory_order_release); \
  ret(*call) params = (ret(*) params)symbol

/* A cl_int function passed on as it is. */
#define FORWARD(name, params, args) \
  EXPORT cl_int name params {       \
    REAL(cl_int, name, params);     \
    cl_int failed = fault(#name);   \
    return failed ? failed : call args; \
  }

/* The same, counting. */
#define COUNTED(name, params, args, counter, step)           \
  EXPORT cl_int name params {                                \
    REAL(cl_int, name, params);                              \
    cl_int code = fault(#name);                              \
    if (!code) code = call args;                             \
    if (!code) atomic_fetch_add(&counter, step);             \
    return code;                                             \
  }

/* A function that makes an object and tells its error through the last argument. */
#define MAKES(name, params, args, counter)             \
  EXPORT handle name params {                          \
    REAL(handle, name, params);                        \
    cl_int failed = fault(#name);                      \
    if (failed) {                                      \
      if (error) *error = failed;                      \
      return NULL;                                     \
    }                                                  \
    handle made = call args;                           \
    if (made) atomic_fetch_add(&counter, 1);           \
    return made;                                       \
  }

/* An enqueue: what it returns as an event is one more reference. */
#define ENQUEUE(name, params, args)                    \
  EXPORT cl_int name params {                          \
    REAL(cl_int, name, params);                        \
    cl_int code = fault(#name);                        \
    if (!code) code = call args;                       \
    if (!code && event) made_event();                  \
    return code;                                       \
  }

#define WAIT cl_uint n_wait, const cl_event *wait, cl_event *event
#define WAIT_ARGS n_wait, wait, event

#endif
