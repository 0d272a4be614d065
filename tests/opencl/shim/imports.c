/* Extensions that take a dma-buf: a file is mapped, and a buffer is made over the mapping.
 *
 * A device that is the CPU reads and writes it there, as a GPU would the pages of a dma-buf. Mappings
 * are never undone. */
#include "shim.h"

#ifdef SHIM_OPENCL_12

void *import_function(const char *name) {
  (void)name;
  return NULL;
}

#else

#include <sys/mman.h>

static handle over_file(handle context, int fd, size_t bytes, cl_int *error) {
  void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (pages == MAP_FAILED) {
    if (error) *error = CL_INVALID_MEM_OBJECT;
    return NULL;
  }
  return clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, pages, error);
}

static handle import_arm(handle context, cl_bitfield flags, const cl_properties *properties,
                         void *memory, size_t bytes, cl_int *error) {
  (void)flags;
  cl_int failed = fault("clImportMemoryARM");
  if (!failed && (properties[0] != CL_IMPORT_TYPE_ARM ||
                  properties[1] != CL_IMPORT_TYPE_DMA_BUF_ARM || properties[2])) {
    failed = CL_INVALID_VALUE;
  }
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  return over_file(context, *(int *)memory, bytes, error);
}

EXPORT handle clCreateBufferWithProperties(handle context, const cl_bitfield *properties,
                                           cl_bitfield flags, size_t bytes, void *host,
                                           cl_int *error) {
  cl_int failed = fault("clCreateBufferWithProperties");
  if (!failed && (!properties || properties[0] != CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR ||
                  properties[2] || host)) {
    failed = CL_INVALID_VALUE;
  }
  (void)flags;
  if (failed) {
    if (error) *error = failed;
    return NULL;
  }
  return over_file(context, (int)properties[1], bytes, error);
}

static cl_int acquire(handle queue, cl_uint n, const handle *buffers, WAIT) {
  (void)buffers;
  cl_int failed = fault("clEnqueueAcquireExternalMemObjectsKHR");
  if (failed) return failed;
  atomic_fetch_add(&total[ACQUIRED], n);
  return clEnqueueMarkerWithWaitList(queue, WAIT_ARGS);
}

static cl_int give_back(handle queue, cl_uint n, const handle *buffers, WAIT) {
  (void)buffers;
  atomic_fetch_sub(&total[ACQUIRED], n);
  return clEnqueueMarkerWithWaitList(queue, WAIT_ARGS);
}

void *import_function(const char *name) {
  if (!strcmp(name, "clImportMemoryARM") && atomic_load(&setting[ARM_IMPORT]) == 1) {
    return (void *)import_arm;
  }
  if (!atomic_load(&setting[KHRONOS_DMA_BUF])) return NULL;
  if (!strcmp(name, "clEnqueueAcquireExternalMemObjectsKHR")) return (void *)acquire;
  if (!strcmp(name, "clEnqueueReleaseExternalMemObjectsKHR")) return (void *)give_back;
  return NULL;
}

#endif
