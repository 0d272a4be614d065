/* A driver that writes down what a call launches: programs, arguments and the contents of all
 * buffers before and after, so that another program can launch the same kernels with the same data
 * (opencl_replay.py). All other calls go to the real library, which this one is linked with.
 *
 * One thread, buffers only. A folder given to recording_begin gets
 *   log            a line for each buffer, part of a buffer and launch, in the order of the calls
 *   N.program      a program's binary
 *   before.H, after.H   the bytes of buffer H
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef void *handle;
enum { CL_PROGRAM_BINARY_SIZES = 0x1165, CL_PROGRAM_BINARIES = 0x1166, CL_MEM_REFERENCES = 0x1105, CL_DEVICE_SVM = 0x1053 };
enum { BUFFERS = 65536, KERNELS = 4096, ARGUMENTS = 64, PLACE = 512 };

static struct buffer { handle it, parent; size_t bytes, origin; } buffers[BUFFERS];
static struct kernel {
  handle it, program;
  char name[256];
  unsigned count;
  struct { size_t bytes; uint64_t value; } arguments[ARGUMENTS];
} kernels[KERNELS];
static handle programs[KERNELS];
static int n_buffers, n_kernels, n_programs;
static FILE *record; /* while recording */
static char folder[PLACE];

static void fail(const char *what) {
  fprintf(stderr, "opencl_record: %s\n", what);
  abort();
}

/* The function of the library behind this one. */
#define REAL(result, name, parameters)                            \
  static result(*real) parameters;                                \
  if (!real) real = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
  if (!real) fail("no " #name)

static void log_buffer(const struct buffer *buffer) {
  fprintf(record, "buffer %p %p %zu %zu\n", buffer->it, buffer->parent, buffer->origin, buffer->bytes);
}

static void add_buffer(struct buffer buffer) {
  if (!buffer.it) return;
  if (n_buffers == BUFFERS) fail("too many buffers");
  buffers[n_buffers++] = buffer;
  if (record) log_buffer(&buffer);
}

handle clCreateBuffer(handle context, uint64_t flags, size_t bytes, void *host, cl_int *status) {
  REAL(handle, clCreateBuffer, (handle, uint64_t, size_t, void *, cl_int *));
  handle made = real(context, flags, bytes, host, status);
  add_buffer((struct buffer){made, NULL, bytes, 0});
  return made;
}

handle clCreateSubBuffer(handle parent, uint64_t flags, cl_uint type, const size_t *region, cl_int *status) {
  REAL(handle, clCreateSubBuffer, (handle, uint64_t, cl_uint, const size_t *, cl_int *));
  handle made = real(parent, flags, type, region, status);
  add_buffer((struct buffer){made, parent, region[1], region[0]});
  return made;
}

cl_int clReleaseMemObject(handle buffer) {
  REAL(cl_int, clReleaseMemObject, (handle));
  cl_int (*info)(handle, cl_uint, size_t, void *, size_t *) = dlsym(RTLD_NEXT, "clGetMemObjectInfo");
  cl_uint references = 0;
  if (info(buffer, CL_MEM_REFERENCES, sizeof references, &references, NULL)) fail("a buffer's references");
  for (int i = n_buffers - 1; references == 1 && i >= 0; --i) {
    if (buffers[i].it != buffer) continue;
    if (record) fail("a buffer ends in the recorded call");
    buffers[i] = buffers[--n_buffers];
    break;
  }
  return real(buffer);
}

handle clCreateKernel(handle program, const char *name, cl_int *status) {
  REAL(handle, clCreateKernel, (handle, const char *, cl_int *));
  handle made = real(program, name, status);
  if (!made) return made;
  if (n_kernels == KERNELS) fail("too many kernels");
  struct kernel *kernel = &kernels[n_kernels++];
  kernel->it = made, kernel->program = program;
  snprintf(kernel->name, sizeof kernel->name, "%s", name);
  return made;
}

static struct kernel *find_kernel(handle it) {
  for (int i = n_kernels - 1; i >= 0; --i)
    if (kernels[i].it == it) return &kernels[i];
  fail("an unknown kernel");
  return NULL;
}

cl_int clSetKernelArg(handle it, cl_uint index, size_t bytes, const void *value) {
  REAL(cl_int, clSetKernelArg, (handle, cl_uint, size_t, const void *));
  struct kernel *kernel = find_kernel(it);
  if (index >= ARGUMENTS || bytes > sizeof(uint64_t) || !value) fail("an argument that is no scalar or buffer");
  if (index >= kernel->count) kernel->count = index + 1;
  kernel->arguments[index].bytes = bytes;
  kernel->arguments[index].value = 0;
  memcpy(&kernel->arguments[index].value, value, bytes);
  return real(it, index, bytes, value);
}

/* No shared virtual memory: the contents of buffers can be read by their handles. */
cl_int clGetDeviceInfo(handle device, cl_uint what, size_t bytes, void *value, size_t *needed) {
  REAL(cl_int, clGetDeviceInfo, (handle, cl_uint, size_t, void *, size_t *));
  cl_int status = real(device, what, bytes, value, needed);
  if (what == CL_DEVICE_SVM && status == 0 && value) memset(value, 0, bytes);
  return status;
}

static FILE *open_file(const char *kind, const char *name) {
  char path[2 * PLACE];
  snprintf(path, sizeof path, "%s/%s%s", folder, kind, name);
  FILE *file = fopen(path, "wb");
  if (!file) fail(path);
  return file;
}

/* The number of a program, whose binary is written when it is first met. */
static int number_of(handle program) {
  for (int i = 0; i < n_programs; ++i)
    if (programs[i] == program) return i;
  cl_int (*info)(handle, cl_uint, size_t, void *, size_t *) = dlsym(RTLD_NEXT, "clGetProgramInfo");
  size_t bytes = 0;
  if (info(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL)) fail("a binary's size");
  unsigned char *binary = malloc(bytes + 1);
  if (!binary || info(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL)) fail("a binary");
  char name[32];
  snprintf(name, sizeof name, "%d.program", n_programs);
  FILE *file = open_file("", name);
  fwrite(binary, 1, bytes, file);
  fclose(file);
  free(binary);
  programs[n_programs] = program;
  return n_programs++;
}

cl_int clEnqueueNDRangeKernel(handle queue, handle it, cl_uint dimensions, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint waits,
                              const handle *wait_list, handle *event) {
  REAL(cl_int, clEnqueueNDRangeKernel, (handle, handle, cl_uint, const size_t *, const size_t *,
                                        const size_t *, cl_uint, const handle *, handle *));
  if (record) {
    struct kernel *kernel = find_kernel(it);
    fprintf(record, "launch %d %s", number_of(kernel->program), kernel->name);
    for (cl_uint i = 0; i < 3; ++i) fprintf(record, " %zu", i < dimensions ? global[i] / local[i] : 1);
    for (cl_uint i = 0; i < 3; ++i) fprintf(record, " %zu", i < dimensions ? local[i] : 1);
    for (unsigned i = 0; i < kernel->count; ++i)
      fprintf(record, " %zu:%llx", kernel->arguments[i].bytes, (unsigned long long)kernel->arguments[i].value);
    fputc('\n', record);
  }
  return real(queue, it, dimensions, offset, global, local, waits, wait_list, event);
}

static handle queue_of_contents;

handle clCreateCommandQueue(handle context, handle device, uint64_t properties, cl_int *status) {
  REAL(handle, clCreateCommandQueue, (handle, handle, uint64_t, cl_int *));
  return queue_of_contents = real(context, device, properties, status);
}

handle clCreateCommandQueueWithProperties(handle context, handle device, const uint64_t *properties, cl_int *status) {
  REAL(handle, clCreateCommandQueueWithProperties, (handle, handle, const uint64_t *, cl_int *));
  return queue_of_contents = real(context, device, properties, status);
}

static void write_contents(const char *when) {
  REAL(cl_int, clEnqueueReadBuffer, (handle, handle, cl_uint, size_t, size_t, void *, cl_uint, const handle *, handle *));
  for (int i = 0; i < n_buffers; ++i) {
    if (buffers[i].parent) continue;
    void *bytes = malloc(buffers[i].bytes);
    if (!bytes || real(queue_of_contents, buffers[i].it, 1, 0, buffers[i].bytes, bytes, 0, NULL, NULL)) fail("reading a buffer");
    char name[32];
    snprintf(name, sizeof name, "%p", buffers[i].it);
    FILE *file = open_file(when, name);
    if (fwrite(bytes, 1, buffers[i].bytes, file) != buffers[i].bytes || fclose(file)) fail("writing a buffer");
    free(bytes);
  }
}

/* The caller waits for the device before both. */
void recording_begin(const char *where) {
  snprintf(folder, sizeof folder, "%s", where);
  write_contents("before.");
  record = open_file("", "log");
  for (int i = 0; i < n_buffers; ++i) log_buffer(&buffers[i]);
}

void recording_end(void) {
  FILE *done = record;
  record = NULL;
  if (fclose(done)) fail("writing the log");
  write_contents("after.");
}
