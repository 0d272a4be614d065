/* Buffers and shared virtual memory. */
#include "shim.h"

EXPORT handle clCreateBuffer(handle context, cl_bitfield flags, size_t bytes, void *host,
                             cl_int *error) {
  REAL(handle, clCreateBuffer, (handle, cl_bitfield, size_t, void *, cl_int *));
  cl_int failed = fault("clCreateBuffer");
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
FORWARD(clGetMemObjectInfo, (handle buffer, cl_uint what, size_t room, void *out, size_t *needed),
        (buffer, what, room, out, needed))
COUNTED(clReleaseMemObject, (handle buffer), (buffer), live[BUFFERS], -1)
ENQUEUE(clEnqueueReadBuffer,
        (handle queue, handle buffer, cl_uint block, size_t offset, size_t bytes, void *out, WAIT),
        (queue, buffer, block, offset, bytes, out, WAIT_ARGS))
ENQUEUE(clEnqueueWriteBuffer,
        (handle queue, handle buffer, cl_uint block, size_t offset, size_t bytes, const void *in,
         WAIT),
        (queue, buffer, block, offset, bytes, in, WAIT_ARGS))
ENQUEUE(clEnqueueCopyBuffer,
        (handle queue, handle from, handle to, size_t from_at, size_t to_at, size_t bytes, WAIT),
        (queue, from, to, from_at, to_at, bytes, WAIT_ARGS))
ENQUEUE(clEnqueueUnmapMemObject, (handle queue, handle buffer, void *mapped, WAIT),
        (queue, buffer, mapped, WAIT_ARGS))

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
  if (mapped && event) made_event();
  return mapped;
}

#ifndef SHIM_OPENCL_12

EXPORT void *clSVMAlloc(handle context, cl_bitfield flags, size_t bytes, cl_uint alignment) {
  REAL(void *, clSVMAlloc, (handle, cl_bitfield, size_t, cl_uint));
  /* It has no error code: a failure is a null pointer. */
  if (fault("clSVMAlloc")) return NULL;
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
        (queue, block, to, from, bytes, WAIT_ARGS))
ENQUEUE(clEnqueueSVMMap,
        (handle queue, cl_uint block, cl_bitfield flags, void *pointer, size_t bytes, WAIT),
        (queue, block, flags, pointer, bytes, WAIT_ARGS))
ENQUEUE(clEnqueueSVMUnmap, (handle queue, void *pointer, WAIT), (queue, pointer, WAIT_ARGS))

#endif
