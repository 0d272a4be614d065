/* The real library, the devices that are pretended beside it, and what handles stand for. */
#include "shim.h"

static void *library;

struct device devices[MAX_DEVICES];
int n_devices, n_platforms;
char platform_handles[MAX_DEVICES];
handle base_platform;
static handle base_device;

void *real(const char *name) {
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

void start(void) {
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

pthread_once_t started = PTHREAD_ONCE_INIT;

/* ---- handles ---- */

struct device *pretended(handle device) {
  struct device *at = (struct device *)device;
  return at >= devices && at < devices + n_devices ? at : NULL;
}

handle real_device(handle device) {
  struct device *at = pretended(device);
  return at ? at->real : device;
}

cl_uint real_devices(cl_uint n, const handle *list, handle *out) {
  cl_uint kept = 0;
  for (cl_uint i = 0; i < n && i < MAX_DEVICES; ++i) {
    handle device = real_device(list[i]);
    int known = 0;
    for (cl_uint j = 0; j < kept; ++j) known |= out[j] == device;
    if (!known) out[kept++] = device;
  }
  return kept;
}

int pretended_platform(handle platform) {
  char *at = (char *)platform;
  return at >= platform_handles && at < platform_handles + n_platforms
             ? (int)(at - platform_handles)
             : -1;
}

cl_int answer(const void *value, size_t bytes, size_t room, void *out, size_t *needed) {
  if (needed) *needed = bytes;
  if (out && room < bytes) return CL_INVALID_VALUE;
  if (out) memcpy(out, value, bytes);
  return CL_SUCCESS;
}

cl_int answer_text(const char *text, size_t room, void *out, size_t *needed) {
  return answer(text, strlen(text) + 1, room, out, needed);
}
