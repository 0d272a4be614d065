/* A stand-in for libOpenCL.so: forwards to the real one, counts objects and injects faults.
 *
 * Point TVM_EDGE_OPENCL_LIBRARY at it. Compiled with -DSHIM_OPENCL_12 it exports the entry points of
 * OpenCL 1.2 only and its devices say they are 1.2, so that a program that needs more shows itself.
 *
 * Environment, read at the first call:
 *   SHIM_REAL      the library behind it (default libOpenCL.so.1)
 *   SHIM_TOPOLOGY  pretended devices: platforms apart by ';', devices by ',', each cpu, gpu or
 *                  accelerator. Each is the real device SHIM_BASE under another handle, type and
 *                  name ("shim gpu 2"); handles are translated in every call that takes one, so
 *                  kernels run on them. Unset: the real platforms as they are.
 *   SHIM_BASE      substring of the name of the real device behind SHIM_TOPOLOGY (default: the first)
 *   SHIM_FAULTS    "clName:nth:times:code" apart by ',', as shim_fault would be told
 *   SHIM_SET       "key=value" apart by ',', as shim_set would be told
 *
 * Calls for the test, through ctypes: shim_set, shim_get, shim_fault, shim_clear.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the calls below need of cl.h. No header: a board has none, and TVM's wheel has none. */
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bitfield;
typedef intptr_t cl_properties;
typedef struct opaque *handle;
typedef struct event_opaque *cl_event;
typedef void (*callback)(void);

enum {
  CL_SUCCESS = 0,
  CL_DEVICE_NOT_FOUND = -1,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_INVALID_VALUE = -30,
  CL_INVALID_PLATFORM = -32,
  CL_INVALID_BUILD_OPTIONS = -43,
  CL_INVALID_WORK_GROUP_SIZE = -54,
  CL_PLATFORM_VERSION = 0x0901,
  CL_PLATFORM_NAME = 0x0902,
  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_NAME = 0x102B,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_PLATFORM = 0x1031,
  CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DEVICE_OPENCL_C_VERSION = 0x103D,
  CL_DEVICE_FIRST_20 = 0x104C,
  CL_DEVICE_SVM_CAPABILITIES = 0x1053,
  CL_DEVICE_LAST_30 = 0x1072,
  CL_CONTEXT_PLATFORM = 0x1084,
  CL_QUEUE_DEVICE = 0x1091,
  CL_CONTEXT_DEVICES = 0x1081,
  CL_PROGRAM_DEVICES = 0x1163,
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
#define COUNT(list) (int)(sizeof(list) / sizeof(*(list)))

/* ---- settings, counters, faults ---- */

/* Live references: what was created or retained, less what was released. */
static const char *const LIVE[] = {"contexts", "queues", "buffers",        "svm", "programs",
                                   "kernels",  "events", "command_buffers"};
enum live { CONTEXTS, QUEUES, BUFFERS, SVM, PROGRAMS, KERNELS, EVENTS, COMMAND_BUFFERS };
static atomic_long live[COUNT(LIVE)];

/* Calls since the start or the last shim_clear. */
static const char *const TOTAL[] = {"launches",     "builds_source", "builds_binary", "reads",
                                    "writes",       "copies",        "maps",          "finishes",
                                    "max_in_flight", "allocations",  "flushes",
                                    "made_kernels", "made_queues",   "made_events",
                                    "arguments",     "recorded",      "replays"};
enum total {
  LAUNCHES,
  BUILDS_SOURCE,
  BUILDS_BINARY,
  READS,
  WRITES,
  COPIES,
  MAPS,
  FINISHES,
  MAX_IN_FLIGHT,
  ALLOCATIONS,
  FLUSHES,
  MADE_KERNELS,
  MADE_QUEUES,
  MADE_EVENTS,
  ARGUMENTS,
  RECORDED,
  REPLAYS
};
static atomic_long total[COUNT(TOTAL)];

/* no_platforms: success with none. track: follow each launch to its end (max_in_flight).
 * queue_limit: the driver that refuses a launch beyond so many in flight, as Mali's does.
 * stale_driver: another driver version, as after an update.
 * Of cl_khr_command_buffer: command_buffer_major, another version of it; no_entry_points, which a
 * driver may lack all the same; one_at_a_time, no simultaneous use; only_for_profiling, for queues
 * with profiling alone.
 * own_memory: a GPU that does not share the host's. coarse_svm: shared virtual memory that the host
 * must map. */
static const char *const SETTING[] = {"no_platforms",         "track",
                                      "queue_limit",          "stale_driver",
                                      "out_of_memory_above_mib", "command_buffer_major",
                                      "no_entry_points",      "one_at_a_time",
                                      "only_for_profiling",   "kernel_items",
                                      "own_memory",           "coarse_svm"};
enum setting {
  NO_PLATFORMS,
  TRACK,
  QUEUE_LIMIT,
  STALE_DRIVER,
  OUT_OF_MEMORY_ABOVE,
  COMMAND_BUFFER_MAJOR,
  NO_ENTRY_POINTS,
  ONE_AT_A_TIME,
  ONLY_FOR_PROFILING,
  KERNEL_ITEMS, /* of a group, for any kernel; 0: as many as the driver says */
  OWN_MEMORY,
  COARSE_SVM
};
static atomic_long setting[COUNT(SETTING)];

#define FAULTS 16
static struct {
  char call[64];
  int nth; /* calls that still pass, plus one */
  int times; /* how many fail then; negative: all */
  cl_int code;
} faults[FAULTS];
static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int armed;

static int find(const char *const *list, int count, const char *key) {
  for (int i = 0; i < count; ++i)
    if (!strcmp(list[i], key)) return i;
  return -1;
}

EXPORT int shim_set(const char *key, int value) {
  int at = find(SETTING, COUNT(SETTING), key);
  if (at < 0) return -1;
  atomic_store(&setting[at], value);
  return 0;
}

EXPORT long shim_get(const char *key) {
  int at = find(LIVE, COUNT(LIVE), key);
  if (at >= 0) return atomic_load(&live[at]);
  at = find(TOTAL, COUNT(TOTAL), key);
  return at >= 0 ? atomic_load(&total[at]) : -1;
}

/* The nth call of `call` from now on (1 = the next) and those after it, `times` in all (-1 = every
 * one), answer `code` and do nothing. */
EXPORT int shim_fault(const char *call, int nth, int times, int code) {
  int done = -1;
  pthread_mutex_lock(&faults_lock);
  for (int i = 0; i < FAULTS && done; ++i) {
    if (faults[i].call[0]) continue;
    snprintf(faults[i].call, sizeof faults[i].call, "%s", call);
    faults[i].nth = nth;
    faults[i].times = times;
    faults[i].code = code;
    atomic_fetch_add(&armed, 1);
    done = 0;
  }
  pthread_mutex_unlock(&faults_lock);
  return done;
}

/* Forget faults, settings and totals; live counts stay. */
EXPORT void shim_clear(void) {
  pthread_mutex_lock(&faults_lock);
  memset(faults, 0, sizeof faults);
  atomic_store(&armed, 0);
  pthread_mutex_unlock(&faults_lock);
  for (int i = 0; i < COUNT(TOTAL); ++i) atomic_store(&total[i], 0);
  for (int i = 0; i < COUNT(SETTING); ++i) atomic_store(&setting[i], 0);
}

static cl_int fault(const char *call) {
  cl_int code = CL_SUCCESS;
  if (!atomic_load(&armed)) return code;
  pthread_mutex_lock(&faults_lock);
  for (int i = 0; i < FAULTS; ++i) {
    if (strcmp(faults[i].call, call)) continue;
    if (--faults[i].nth > 0) continue;
    code = faults[i].code;
    if (faults[i].times > 0 && --faults[i].times == 0) {
      faults[i].call[0] = 0;
      atomic_fetch_sub(&armed, 1);
    }
    break;
  }
  pthread_mutex_unlock(&faults_lock);
  return code;
}

/* ---- the real library ---- */

static void *library;

#define MAX_DEVICES 16
struct device {
  handle real;
  cl_bitfield type;
  int platform;
  char name[32];
};
static struct device devices[MAX_DEVICES];
static int n_devices, n_platforms;
static char platform_handles[MAX_DEVICES]; /* their addresses are the handles */
static handle base_platform, base_device;

static void *real(const char *name) {
  void *symbol = dlsym(library, name);
  if (!symbol) {
    fprintf(stderr, "shim: the real OpenCL library has no %s\n", name);
    abort();
  }
  return symbol;
}

static void find_base(const char *wanted) {
  cl_int (*get_platforms)(cl_uint, handle *, cl_uint *) = real("clGetPlatformIDs");
  cl_int (*get_devices)(handle, cl_bitfield, cl_uint, handle *, cl_uint *) = real("clGetDeviceIDs");
  cl_int (*get_info)(handle, cl_uint, size_t, void *, size_t *) = real("clGetDeviceInfo");
  handle platforms[16], found[16];
  cl_uint n = 0, m = 0;
  if (get_platforms(16, platforms, &n)) n = 0;
  for (cl_uint p = 0; p < n && p < 16 && !base_device; ++p) {
    if (get_devices(platforms[p], 0xFFFFFFFF, 16, found, &m)) continue;
    for (cl_uint d = 0; d < m && d < 16 && !base_device; ++d) {
      char name[512] = "";
      get_info(found[d], CL_DEVICE_NAME, sizeof name, name, NULL);
      if (wanted && !strstr(name, wanted)) continue;
      base_platform = platforms[p];
      base_device = found[d];
    }
  }
  if (!base_device) {
    fprintf(stderr, "shim: no real device is named %s\n", wanted ? wanted : "(any)");
    abort();
  }
}

static void pretend(char *topology) {
  find_base(getenv("SHIM_BASE"));
  char *rest_platforms, *rest_devices;
  for (char *p = strtok_r(topology, ";", &rest_platforms); p;
       p = strtok_r(NULL, ";", &rest_platforms), ++n_platforms) {
    for (char *d = strtok_r(p, ",", &rest_devices); d; d = strtok_r(NULL, ",", &rest_devices)) {
      struct device *device = &devices[n_devices];
      device->real = base_device;
      device->platform = n_platforms;
      device->type = *d == 'g' ? 4 : *d == 'a' ? 8 : 2;
      snprintf(device->name, sizeof device->name, "shim %s %d", d, n_devices++);
    }
  }
}

static void start(void) {
  const char *path = getenv("SHIM_REAL");
  library = dlopen(path && *path ? path : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "shim: SHIM_REAL: %s\n", dlerror());
    abort();
  }
  char text[512], *rest;
  const char *value = getenv("SHIM_TOPOLOGY");
  if (value && *value) {
    snprintf(text, sizeof text, "%s", value);
    pretend(text);
  }
  if ((value = getenv("SHIM_FAULTS"))) {
    snprintf(text, sizeof text, "%s", value);
    for (char *f = strtok_r(text, ",", &rest); f; f = strtok_r(NULL, ",", &rest)) {
      char call[64];
      int nth, times, code;
      if (sscanf(f, "%63[^:]:%d:%d:%d", call, &nth, &times, &code) != 4) abort();
      shim_fault(call, nth, times, code);
    }
  }
  if ((value = getenv("SHIM_SET"))) {
    snprintf(text, sizeof text, "%s", value);
    for (char *f = strtok_r(text, ",", &rest); f; f = strtok_r(NULL, ",", &rest)) {
      char key[64];
      int number;
      if (sscanf(f, "%63[^=]=%d", key, &number) != 2 || shim_set(key, number)) abort();
    }
  }
}

static pthread_once_t started = PTHREAD_ONCE_INIT;

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
#define ENQUEUE(name, params, args, counter)           \
  EXPORT cl_int name params {                          \
    REAL(cl_int, name, params);                        \
    cl_int code = fault(#name);                        \
    if (!code) code = call args;                       \
    if (!code) {                                       \
      atomic_fetch_add(&counter, 1);                   \
      if (event) made_event();                         \
    }                                                  \
    return code;                                       \
  }

#define WAIT cl_uint n_wait, const cl_event *wait, cl_event *event
#define WAIT_ARGS n_wait, wait, event

static atomic_long uncounted;

static void made_event(void) {
  atomic_fetch_add(&live[EVENTS], 1);
  atomic_fetch_add(&total[MADE_EVENTS], 1);
}

/* ---- handles ---- */

static struct device *pretended(handle device) {
  struct device *at = (struct device *)device;
  return at >= devices && at < devices + n_devices ? at : NULL;
}

static handle real_device(handle device) {
  struct device *at = pretended(device);
  return at ? at->real : device;
}

/* Handles of a list, each real device once: two pretended ones may be the same. */
static cl_uint real_devices(cl_uint n, const handle *list, handle *out) {
  cl_uint kept = 0;
  for (cl_uint i = 0; i < n && i < MAX_DEVICES; ++i) {
    handle device = real_device(list[i]);
    int known = 0;
    for (cl_uint j = 0; j < kept; ++j) known |= out[j] == device;
    if (!known) out[kept++] = device;
  }
  return kept;
}

static int pretended_platform(handle platform) {
  char *at = (char *)platform;
  return at >= platform_handles && at < platform_handles + n_platforms
             ? (int)(at - platform_handles)
             : -1;
}

static cl_int answer(const void *value, size_t bytes, size_t room, void *out, size_t *needed) {
  if (needed) *needed = bytes;
  if (out && room < bytes) return CL_INVALID_VALUE;
  if (out) memcpy(out, value, bytes);
  return CL_SUCCESS;
}

static cl_int answer_text(const char *text, size_t room, void *out, size_t *needed) {
  return answer(text, strlen(text) + 1, room, out, needed);
}

/* ---- platforms and devices ---- */

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

FORWARD(clRetainDevice, (handle device), (real_device(device)))
FORWARD(clReleaseDevice, (handle device), (real_device(device)))

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

COUNTED(clRetainContext, (handle context), (context), live[CONTEXTS], 1)
COUNTED(clReleaseContext, (handle context), (context), live[CONTEXTS], -1)
FORWARD(clGetContextInfo, (handle context, cl_uint what, size_t room, void *out, size_t *needed),
        (context, what, room, out, needed))

EXPORT handle clCreateCommandQueue(handle context, handle device, cl_bitfield properties,
                                   cl_int *error) {
  REAL(handle, clCreateCommandQueue, (handle, handle, cl_bitfield, cl_int *));
  cl_int failed = fault("clCreateCommandQueue");
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  handle made = call(context, real_device(device), properties, error);
  if (made) {
    atomic_fetch_add(&live[QUEUES], 1);
    atomic_fetch_add(&total[MADE_QUEUES], 1);
  }
  return made;
}

COUNTED(clRetainCommandQueue, (handle queue), (queue), live[QUEUES], 1)
COUNTED(clReleaseCommandQueue, (handle queue), (queue), live[QUEUES], -1)
FORWARD(clGetCommandQueueInfo, (handle queue, cl_uint what, size_t room, void *out, size_t *needed),
        (queue, what, room, out, needed))
COUNTED(clFlush, (handle queue), (queue), total[FLUSHES], 1)
COUNTED(clFinish, (handle queue), (queue), total[FINISHES], 1)

/* ---- memory ---- */

EXPORT handle clCreateBuffer(handle context, cl_bitfield flags, size_t bytes, void *host,
                             cl_int *error) {
  REAL(handle, clCreateBuffer, (handle, cl_bitfield, size_t, void *, cl_int *));
  cl_int failed = fault("clCreateBuffer");
  long most = atomic_load(&setting[OUT_OF_MEMORY_ABOVE]);
  if (most && bytes > (size_t)most << 20) failed = -4;
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  handle made = call(context, flags, bytes, host, error);
  if (made) {
    atomic_fetch_add(&live[BUFFERS], 1);
    atomic_fetch_add(&total[ALLOCATIONS], 1);
  }
  return made;
}

MAKES(clCreateSubBuffer,
      (handle buffer, cl_bitfield flags, cl_uint type, const void *region, cl_int *error),
      (buffer, flags, type, region, error), live[BUFFERS])
COUNTED(clRetainMemObject, (handle buffer), (buffer), live[BUFFERS], 1)
COUNTED(clReleaseMemObject, (handle buffer), (buffer), live[BUFFERS], -1)
FORWARD(clGetMemObjectInfo, (handle buffer, cl_uint what, size_t room, void *out, size_t *needed),
        (buffer, what, room, out, needed))
FORWARD(clSetMemObjectDestructorCallback, (handle buffer, callback notify, void *user),
        (buffer, notify, user))
ENQUEUE(clEnqueueReadBuffer,
        (handle queue, handle buffer, cl_uint block, size_t offset, size_t bytes, void *out, WAIT),
        (queue, buffer, block, offset, bytes, out, WAIT_ARGS), total[READS])
ENQUEUE(clEnqueueWriteBuffer,
        (handle queue, handle buffer, cl_uint block, size_t offset, size_t bytes, const void *in,
         WAIT),
        (queue, buffer, block, offset, bytes, in, WAIT_ARGS), total[WRITES])
ENQUEUE(clEnqueueCopyBuffer,
        (handle queue, handle from, handle to, size_t from_at, size_t to_at, size_t bytes, WAIT),
        (queue, from, to, from_at, to_at, bytes, WAIT_ARGS), total[COPIES])
ENQUEUE(clEnqueueFillBuffer,
        (handle queue, handle buffer, const void *pattern, size_t size, size_t at, size_t bytes,
         WAIT),
        (queue, buffer, pattern, size, at, bytes, WAIT_ARGS), uncounted)
ENQUEUE(clEnqueueUnmapMemObject, (handle queue, handle buffer, void *mapped, WAIT),
        (queue, buffer, mapped, WAIT_ARGS), uncounted)
ENQUEUE(clEnqueueMigrateMemObjects,
        (handle queue, cl_uint n, const handle *buffers, cl_bitfield flags, WAIT),
        (queue, n, buffers, flags, WAIT_ARGS), uncounted)

EXPORT void *clEnqueueMapBuffer(handle queue, handle buffer, cl_uint block, cl_bitfield flags,
                                size_t at, size_t bytes, WAIT, cl_int *error) {
  REAL(void *, clEnqueueMapBuffer,
       (handle, handle, cl_uint, cl_bitfield, size_t, size_t, WAIT, cl_int *));
  cl_int failed = fault("clEnqueueMapBuffer");
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  void *mapped = call(queue, buffer, block, flags, at, bytes, WAIT_ARGS, error);
  if (mapped) {
    atomic_fetch_add(&total[MAPS], 1);
    if (event) made_event();
  }
  return mapped;
}

/* ---- programs and kernels ---- */

/* Programs made from a binary, so that a build can be told from a load. */
#define MAX_BINARIES 4096
static handle binaries[MAX_BINARIES];
static pthread_mutex_t binaries_lock = PTHREAD_MUTEX_INITIALIZER;

/* Programs whose build was made to fail, for the status and the log. */
static _Atomic(handle) failed_program;

static int swap_binary(handle old, handle new) {
  int done = 0;
  pthread_mutex_lock(&binaries_lock);
  for (int i = 0; i < MAX_BINARIES && !done; ++i)
    if (binaries[i] == old) {
      binaries[i] = new;
      done = 1;
    }
  pthread_mutex_unlock(&binaries_lock);
  return done;
}

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
  if (made) {
    atomic_fetch_add(&live[PROGRAMS], 1);
    swap_binary(NULL, made);
  }
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
  cl_int code = call(program, kept, kept ? own : NULL, options, notify, user);
  int binary = swap_binary(program, program);
  if (!code) atomic_fetch_add(&total[binary ? BUILDS_BINARY : BUILDS_SOURCE], 1);
  return code;
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
COUNTED(clRetainProgram, (handle program), (program), live[PROGRAMS], 1)

EXPORT cl_int clReleaseProgram(handle program) {
  REAL(cl_int, clReleaseProgram, (handle));
  /* Nobody here retains programs, so this ends it and the handle may be given out again. */
  swap_binary(program, NULL);
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

EXPORT cl_int clCreateKernelsInProgram(handle program, cl_uint room, handle *out, cl_uint *count) {
  REAL(cl_int, clCreateKernelsInProgram, (handle, cl_uint, handle *, cl_uint *));
  cl_uint made = 0;
  cl_int code = call(program, room, out, &made);
  if (count) *count = made;
  if (!code && out) atomic_fetch_add(&live[KERNELS], made);
  return code;
}

COUNTED(clRetainKernel, (handle kernel), (kernel), live[KERNELS], 1)
COUNTED(clReleaseKernel, (handle kernel), (kernel), live[KERNELS], -1)
COUNTED(clSetKernelArg, (handle kernel, cl_uint at, size_t bytes, const void *value),
        (kernel, at, bytes, value), total[ARGUMENTS], 1)
FORWARD(clGetKernelInfo, (handle kernel, cl_uint what, size_t room, void *out, size_t *needed),
        (kernel, what, room, out, needed))
FORWARD(clGetKernelArgInfo,
        (handle kernel, cl_uint at, cl_uint what, size_t room, void *out, size_t *needed),
        (kernel, at, what, room, out, needed))

EXPORT cl_int clGetKernelWorkGroupInfo(handle kernel, handle device, cl_uint what, size_t room,
                                       void *out, size_t *needed) {
  REAL(cl_int, clGetKernelWorkGroupInfo, (handle, handle, cl_uint, size_t, void *, size_t *));
  cl_int failed = fault("clGetKernelWorkGroupInfo");
  if (failed) return failed;
  cl_int code = call(kernel, real_device(device), what, room, out, needed);
  size_t most = (size_t)atomic_load(&setting[KERNEL_ITEMS]);
  if (!code && what == CL_KERNEL_WORK_GROUP_SIZE && out && most && *(size_t *)out > most)
    *(size_t *)out = most;
  return code;
}

typedef void (*event_notify)(cl_event, cl_int, void *);

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

ENQUEUE(clEnqueueTask, (handle queue, handle kernel, WAIT), (queue, kernel, WAIT_ARGS),
        total[LAUNCHES])

/* ---- events ---- */

ENQUEUE(clEnqueueMarkerWithWaitList, (handle queue, WAIT), (queue, WAIT_ARGS), uncounted)
ENQUEUE(clEnqueueBarrierWithWaitList, (handle queue, WAIT), (queue, WAIT_ARGS), uncounted)
FORWARD(clWaitForEvents, (cl_uint n, const cl_event *list), (n, list))
COUNTED(clRetainEvent, (cl_event event), (event), live[EVENTS], 1)
COUNTED(clReleaseEvent, (cl_event event), (event), live[EVENTS], -1)
FORWARD(clGetEventInfo, (cl_event event, cl_uint what, size_t room, void *out, size_t *needed),
        (event, what, room, out, needed))
FORWARD(clGetEventProfilingInfo,
        (cl_event event, cl_uint what, size_t room, void *out, size_t *needed),
        (event, what, room, out, needed))
FORWARD(clSetEventCallback, (cl_event event, cl_int status, event_notify notify, void *user),
        (event, status, notify, user))
FORWARD(clSetUserEventStatus, (cl_event event, cl_int status), (event, status))
MAKES(clCreateUserEvent, (handle context, cl_int *error), (context, error), live[EVENTS])
FORWARD(clUnloadPlatformCompiler, (handle platform),
        (pretended_platform(platform) >= 0 ? base_platform : platform))

/* ---- cl_khr_command_buffer: no symbols, a platform hands the functions out ---- */

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
  void *found_there = call(pretended_platform(platform) >= 0 ? base_platform : platform, name);
  for (int i = 0; i < COUNT(COMMAND_BUFFER); ++i) {
    if (strcmp(COMMAND_BUFFER[i].name, name)) continue;
    if (!found_there || atomic_load(&setting[NO_ENTRY_POINTS])) return NULL;
    memcpy(COMMAND_BUFFER[i].real, &found_there, sizeof found_there);
    return COMMAND_BUFFER[i].ours;
  }
  return found_there;
#endif
}

/* ---- OpenCL 2.x ---- */

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
  if (made) {
    atomic_fetch_add(&live[QUEUES], 1);
    atomic_fetch_add(&total[MADE_QUEUES], 1);
  }
  return made;
}

EXPORT void *clSVMAlloc(handle context, cl_bitfield flags, size_t bytes, cl_uint alignment) {
  REAL(void *, clSVMAlloc, (handle, cl_bitfield, size_t, cl_uint));
  long most = atomic_load(&setting[OUT_OF_MEMORY_ABOVE]);
  /* It has no error code: a failure is a null pointer. */
  if (fault("clSVMAlloc") || (most && bytes > (size_t)most << 20)) return NULL;
  void *made = call(context, flags, bytes, alignment);
  if (made) {
    atomic_fetch_add(&live[SVM], 1);
    atomic_fetch_add(&total[ALLOCATIONS], 1);
  }
  return made;
}

EXPORT void clSVMFree(handle context, void *pointer) {
  REAL(void, clSVMFree, (handle, void *));
  if (pointer) atomic_fetch_sub(&live[SVM], 1);
  call(context, pointer);
}

ENQUEUE(clEnqueueSVMMemcpy,
        (handle queue, cl_uint block, void *to, const void *from, size_t bytes, WAIT),
        (queue, block, to, from, bytes, WAIT_ARGS), total[COPIES])
ENQUEUE(clEnqueueSVMMemFill,
        (handle queue, void *to, const void *pattern, size_t size, size_t bytes, WAIT),
        (queue, to, pattern, size, bytes, WAIT_ARGS), uncounted)
ENQUEUE(clEnqueueSVMMap,
        (handle queue, cl_uint block, cl_bitfield flags, void *pointer, size_t bytes, WAIT),
        (queue, block, flags, pointer, bytes, WAIT_ARGS), total[MAPS])
ENQUEUE(clEnqueueSVMUnmap, (handle queue, void *pointer, WAIT), (queue, pointer, WAIT_ARGS),
        uncounted)
COUNTED(clSetKernelArgSVMPointer, (handle kernel, cl_uint at, const void *value),
        (kernel, at, value), total[ARGUMENTS], 1)
FORWARD(clSetKernelExecInfo, (handle kernel, cl_uint what, size_t bytes, const void *value),
        (kernel, what, bytes, value))
FORWARD(clGetKernelSubGroupInfo,
        (handle kernel, handle device, cl_uint what, size_t n_in, const void *in, size_t room,
         void *out, size_t *needed),
        (kernel, real_device(device), what, n_in, in, room, out, needed))
MAKES(clCloneKernel, (handle kernel, cl_int *error), (kernel, error), live[KERNELS])
FORWARD(clGetDeviceAndHostTimer, (handle device, uint64_t *device_time, uint64_t *host_time),
        (real_device(device), device_time, host_time))
FORWARD(clGetHostTimer, (handle device, uint64_t *host_time), (real_device(device), host_time))

#endif
