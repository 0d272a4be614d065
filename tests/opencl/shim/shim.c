/* A stand-in for libOpenCL.so: forwards to the real one, counts objects and injects faults.
 *
 * Point TVM_EDGE_OPENCL_LIBRARY at it. It exports what the runtime looks up (csrc/abi.h); compiled
 * with -DSHIM_OPENCL_12 what OpenCL 1.2 has of that, and its devices say they are 1.2, so that a
 * program that needs more shows itself.
 *
 * Environment, read at the first call:
 *   SHIM_REAL      the library behind it (default libOpenCL.so.1)
 *   SHIM_TOPOLOGY  pretended devices: platforms apart by ';', devices by ',', each cpu, gpu or
 *                  accelerator. Each is the real device SHIM_BASE under another handle, type and
 *                  name ("shim gpu 2"); handles are translated in every call that takes one, so
 *                  kernels run on them. Unset: the real platforms as they are.
 *   SHIM_BASE      substring of the name of the real device behind SHIM_TOPOLOGY; unset: the first
 *   SHIM_FAULTS    "clName:nth:times:code" apart by ',', as shim_fault would be told
 *   SHIM_SET       "key=value" apart by ',', as shim_set would be told
 *
 * Calls for the test, through ctypes: shim_set, shim_get, shim_fault, shim_clear.
 */
#include "shim.h"

static const char *const LIVE[LIVES] = {"contexts", "queues",  "buffers", "svm",
                                        "programs", "kernels", "events",  "command_buffers"};
atomic_long live[LIVES];

static const char *const TOTAL[TOTALS] = {
    "launches",    "max_in_flight", "allocations", "made_kernels",
    "made_events", "arguments",     "recorded",    "replays",       "acquired"};
atomic_long total[TOTALS];

static const char *const SETTING[SETTINGS] = {
    "no_platforms",         "track",           "queue_limit",   "stale_driver",
    "command_buffer_major", "no_entry_points", "one_at_a_time", "only_for_profiling",
    "kernel_items",         "own_memory",      "coarse_svm",    "arm_import",
    "khronos_dma_buf",      "nvidia_items"};
atomic_long setting[SETTINGS];

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
  int at = find(SETTING, SETTINGS, key);
  if (at < 0) return -1;
  atomic_store(&setting[at], value);
  return 0;
}

EXPORT long shim_get(const char *key) {
  int at = find(LIVE, LIVES, key);
  if (at >= 0) return atomic_load(&live[at]);
  at = find(TOTAL, TOTALS, key);
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
  for (int i = 0; i < TOTALS; ++i) atomic_store(&total[i], 0);
  for (int i = 0; i < SETTINGS; ++i) atomic_store(&setting[i], 0);
}

cl_int fault(const char *call) {
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

void made_event(void) {
  atomic_fetch_add(&live[EVENTS], 1);
  atomic_fetch_add(&total[MADE_EVENTS], 1);
}
