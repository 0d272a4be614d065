#include "affinity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace tvm_edge {

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

cpu_set_t WorkerCpus(const std::vector<int>& chosen) {
  cpu_set_t set, own;
  CPU_ZERO(&set);
  for (int cpu : chosen) CPU_SET(cpu, &set);
  if (!chosen.empty()) return set;
  // A thread that has bound itself to some CPUs does not bind the workers of all.
  sched_getaffinity(getpid(), sizeof(set), &set);
  if (sched_getaffinity(0, sizeof(own), &own) == 0) CPU_OR(&set, &set, &own);
  return set;
}

int Detour::Begin(pid_t thread, const cpu_set_t& taken) {
  if (begun_ || sched_getaffinity(thread, sizeof(before_), &before_) != 0) return -1;
  cpu_set_t common;
  CPU_AND(&common, &before_, &taken);
  CPU_XOR(&others_, &before_, &common);
  if (CPU_COUNT(&others_) == 0) return -1;
  if (sched_setaffinity(thread, sizeof(others_), &others_) != 0) return -1;
  begun_ = true;
  int cpu = 0;
  while (!CPU_ISSET(cpu, &others_)) ++cpu;
  return cpu;
}

void Detour::End() {
  if (!std::exchange(begun_, false)) return;
  cpu_set_t now;
  if (sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &others_)) {
    sched_setaffinity(0, sizeof(before_), &before_);
  }
}

}  // namespace tvm_edge
