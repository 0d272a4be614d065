// CPUs that threads may use and run on (Linux).
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <vector>

namespace tvm_edge {

/*! \brief The calling thread, as Linux numbers it; glibc has had a function for it since 2.30. */
pid_t ThreadId();

/*! \brief Where workers may run: CPUs that were chosen, else those of the whole process. */
cpu_set_t WorkerCpus(const std::vector<int>& chosen);

/*!
 * \brief A thread that is moved to other CPUs, and may use all of its own again after that.
 *
 * Guards nothing: one thread at a time uses an object.
 */
class Detour {
 public:
  /*!
   * \brief Let a thread use none of these CPUs for now.
   * \param thread 0: the calling one.
   * \return A CPU that it may use; -1 if it may use no others: it stays where it is.
   */
  int Begin(pid_t thread, const cpu_set_t& taken);

  /*! \brief Let the calling thread use its CPUs again, unless somebody has changed them meanwhile. */
  void End();

 private:
  bool begun_ = false;
  cpu_set_t before_;
  cpu_set_t others_;
};

}  // namespace tvm_edge
