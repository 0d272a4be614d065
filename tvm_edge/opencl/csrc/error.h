// OpenCL status codes as exceptions that say what failed, on which device, and what to do.
#ifndef TVM_EDGE_OPENCL_ERROR_H_
#define TVM_EDGE_OPENCL_ERROR_H_

#include <cstdint>
#include <string>

#include "abi.h"

namespace tvm_edge::opencl {

class Device;

/*! \brief The name of a status code, as in the specification. */
std::string StatusName(cl_int status);

/*! \brief Whether a status says that the device answers no more. */
bool IsLost(cl_int status);

/*! \brief Whether a status says that memory of the device or of the driver ran out. */
bool IsOutOfMemory(cl_int status);

/*!
 * \brief Throw the exception for a status: MemoryError where memory ran out, else RuntimeError.
 *
 * A status that means a lost device marks the device, so that later calls fail with that reason.
 */
[[noreturn]] void Fail(cl_int status, Device* device, const std::string& what);

inline void Check(cl_int status, Device* device, const char* what) {
  if (status != CL_SUCCESS) Fail(status, device, what);
}

/*! \brief Throw InputError: the environment variable `name` is `value`, and `must` be another. */
[[noreturn]] void FailVariable(const char* name, const std::string& value, const std::string& must,
                               const char* allowed);

/*! \brief The number in an environment variable; `otherwise` where it is not set.
 *
 * Throws InputError for what is no whole number of at least 1.
 */
int64_t CountVariable(const char* name, int64_t otherwise);

/*! \brief Throw MemoryError for an allocation of `bytes`. */
[[noreturn]] void FailAllocation(cl_int status, Device* device, size_t bytes);

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_ERROR_H_
