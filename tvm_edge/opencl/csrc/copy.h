// Copies between the host and a device, and within a device.
#ifndef TVM_EDGE_OPENCL_COPY_H_
#define TVM_EDGE_OPENCL_COPY_H_

#include <cstddef>

#include "abi.h"
#include "memory.h"
#include "stream.h"

namespace tvm_edge::opencl {

/*! \brief One end of a copy on a device. */
struct End {
  Device* device;
  Place place;
  cl_mem buffer() const { return place.block->mem; }
  char* svm() const { return static_cast<char*>(place.block->svm) + place.offset; }
  /*! \brief Where the host may read and write it once the stream is done; null if nowhere. */
  char* host() const;
};

/*! \brief Where `bytes` from an address of TVM's on lie; throws ValueError naming `what`. */
End FindEnd(Device* device, const void* data, size_t offset, size_t bytes, const char* what);

/*! \brief Host memory to a device; returns when the host memory may change, as callers expect. */
void CopyIn(Stream* stream, const void* from, const End& to, size_t bytes);
/*!
 * \brief A device's memory to the host.
 * \param done Null to wait for it; else gets its event, null where nothing needs to be waited for.
 */
void CopyOut(Stream* stream, const End& from, void* to, size_t bytes, Event* done = nullptr);
/*! \brief Within one device. */
void CopyWithin(Stream* stream, const End& from, const End& to, size_t bytes);

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_COPY_H_
