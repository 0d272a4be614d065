// The worker pool under kernels that TVM compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tvm_edge {

/*! \brief Add the functions to TVM's registry. */
void RegisterPool();

/*!
 * \brief Let kernels that this thread launches run on so many threads, itself counted.
 * \param cpus CPUs that workers keep to; empty: all that the process may use.
 * \param capacity Threads that work at the same time, whoever launches kernels.
 * \param spin_ns How long a worker looks for the next kernel before it sleeps.
 * \return The threads that there are.
 */
int64_t UseThreads(int64_t threads, const std::vector<int>& cpus, int64_t capacity,
                   int64_t spin_ns);

/*!
 * \brief Let workers of this thread's pool get up: a run begins.
 *
 * Those sleep on whom no kernel of the run before wanted. Others look for its first kernel for at
 * most a millisecond.
 */
void ExpectLaunches();

/*! \brief Times that this thread was told what its kernels run on. */
int64_t ThreadUses();

/*! \brief While it lives, libraries that are loaded and modules that are built use the pool. */
class KernelsOnPool {
 public:
  KernelsOnPool();
  ~KernelsOnPool();
  KernelsOnPool(const KernelsOnPool&) = delete;
  KernelsOnPool& operator=(const KernelsOnPool&) = delete;
};

/*!
 * \brief Have the kernels of a library that is loaded already use the pool.
 *
 * TVM FFI keeps every symbol that was ever registered, and gives all to each library: what is loaded
 * again and again is told by itself.
 * \param path As it was loaded by.
 */
void UsePoolIn(const std::string& path);

}  // namespace tvm_edge
