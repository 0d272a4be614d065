#include "threads.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "error.h"
#include "parallel_launch.h"

namespace tvm_edge {
namespace {

constexpr int64_t kRecheckNs = 1000000000;

/*! \brief Threads that this thread's kernels run on. A fork leaves the workers behind. */
struct Used {
  int64_t count = 0;
  std::vector<int> cpus;
  pid_t process = 0;
  int64_t recheck_ns = 0;
  int64_t uses = -1;  // somebody else may have told the pool since
};
thread_local Used used;

int64_t CoarseNow() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

void WarnOfFewer(int64_t wanted, int64_t there) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  Log("warning", std::to_string(wanted) + " threads were asked for and kernels run on " +
                     std::to_string(there) +
                     ": the process may use no more CPUs by now, or start no more threads (ulimit "
                     "-u)");
}

}  // namespace

void UseThreadsOf(const ThreadChoice& choice) {
  const int64_t now = CoarseNow();
  const pid_t process = getpid();
  if (used.count == choice.count && used.cpus == choice.cpus && used.process == process &&
      used.uses == ThreadUses() && now < used.recheck_ns) {
    return;
  }
  const int64_t there =
      UseThreads(choice.count, choice.cpus, choice.capacity, choice.spin_ns);
  if (there < choice.count) WarnOfFewer(choice.count, there);
  used = {choice.count, choice.cpus, process, now + kRecheckNs, ThreadUses()};
}

RunningOnThreads::RunningOnThreads(const ThreadChoice& choice) {
  UseThreadsOf(choice);
  ExpectLaunches();
  if (choice.cpus.empty() || sched_getaffinity(0, sizeof before_, &before_)) return;
  cpu_set_t kept;
  CPU_ZERO(&kept);
  for (int cpu : choice.cpus) {
    if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &kept);
  }
  moved_ = CPU_COUNT(&kept) > 0 && sched_setaffinity(0, sizeof kept, &kept) == 0;
}

RunningOnThreads::~RunningOnThreads() {
  if (moved_) sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace tvm_edge
