// Threads of kernels, on the CPUs that a model keeps to.
#pragma once

#include <sched.h>

#include "host.h"
#include "subnormals.h"

namespace tvm_edge {

/*!
 * \brief Let kernels that the calling thread launches run on a model's threads.
 *
 * All models of a process share one pool of workers for each set of CPUs. How many CPUs there are
 * is looked up again each second.
 */
void UseThreadsOf(const ThreadChoice& choice);

/*!
 * \brief A run on a model's threads; the calling one keeps to the CPUs, too.
 *
 * Subnormal numbers are zero in kernels, those that the calling thread runs as well.
 */
class RunningOnThreads {
 public:
  explicit RunningOnThreads(const ThreadChoice& choice);
  ~RunningOnThreads();
  RunningOnThreads(const RunningOnThreads&) = delete;
  RunningOnThreads& operator=(const RunningOnThreads&) = delete;

 private:
  SubnormalsAreZero subnormals_are_zero_;
  bool moved_ = false;
  cpu_set_t before_;
};

}  // namespace tvm_edge
