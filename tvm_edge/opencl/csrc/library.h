// The OpenCL library of the machine, opened with dlopen when the first device is asked for.
#ifndef TVM_EDGE_OPENCL_LIBRARY_H_
#define TVM_EDGE_OPENCL_LIBRARY_H_

#include <string>

#include "abi.h"

namespace tvm_edge::opencl {

/*! \brief The entry points of one OpenCL library. */
struct Library {
#define TVM_EDGE_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  TVM_EDGE_OPENCL_CORE(TVM_EDGE_MEMBER)
  TVM_EDGE_OPENCL_OPTIONAL(TVM_EDGE_MEMBER)
#undef TVM_EDGE_MEMBER

  /*! \brief Path or soname it was opened with; empty if none was. */
  std::string path;
  /*! \brief Why there is none; empty if there is one. */
  std::string error;

  bool loaded() const { return !path.empty(); }
};

/*! \brief The library, opened at the first call; the result never changes. */
const Library& cl();

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_LIBRARY_H_
