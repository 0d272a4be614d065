// The functions that this library adds to TVM's registry, beside those of OpenCL.
#include "register.h"

#include <mutex>

#include "arena.h"
#include "captures.h"
#include "parallel_launch.h"
#include "python_api.h"
#include "result_memory.h"
#include "weight_stream.h"

/*! \brief Add the functions; more than once does no harm. */
extern "C" __attribute__((visibility("default"))) void TvmEdgeNativeRegister() {
  static std::once_flag once;
  std::call_once(once, [] {
    tvm_edge::RegisterPool();
    tvm_edge::RegisterArenas();
    tvm_edge::RegisterCaptures();
    tvm_edge::RegisterWeightStream();
    tvm_edge::RegisterResultMemory();
    tvm_edge::RegisterPythonApi();
  });
}
