// The functions for models on CPUs that this library adds to TVM's registry.
#include <mutex>

#include "arena.h"
#include "parallel_launch.h"

/*! \brief Add the functions; more than once does no harm. */
extern "C" __attribute__((visibility("default"))) void TvmEdgeNativeRegister() {
  static std::once_flag once;
  std::call_once(once, [] {
    tvm_edge::RegisterPool();
    tvm_edge::RegisterArenas();
  });
}
