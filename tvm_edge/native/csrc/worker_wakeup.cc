// Sleep of workers, and the CPUs on which they wake up.
#include <sched.h>
#include <time.h>

#include "affinity.h"
#include "futex.h"
#include "worker_pool.h"

namespace tvm_edge {

void WorkerPool::Sleep(int number, uint32_t seen) {
  Worker& self = staff_[number];
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  self.cpu.store(sched_getcpu(), std::memory_order_relaxed);
  sleeping_.fetch_add(1, std::memory_order_seq_cst);
  self.state.store(kAsleep, std::memory_order_seq_cst);
  if (epoch_.load(std::memory_order_seq_cst) == seen) FutexWait(&self.state, kAsleep);
  uint32_t state = kAsleep;
  if (self.state.compare_exchange_strong(state, kAwake, std::memory_order_acquire)) {
    sleeping_.fetch_sub(1, std::memory_order_relaxed);
    return;  // not woken by a launch, or by nobody
  }
  while (state != kAwake) {
    FutexWait(&self.state, state);
    state = self.state.load(std::memory_order_acquire);
  }
  self.detour.End();
}

void WorkerPool::SitOut(int number, int64_t rest_ns) {
  Worker& self = staff_[number];
  rests_.fetch_add(1, std::memory_order_relaxed);
  resting_.fetch_add(1, std::memory_order_relaxed);
  self.state.store(kResting, std::memory_order_relaxed);
  const timespec time{rest_ns / 1'000'000'000, rest_ns % 1'000'000'000};
  nanosleep(&time, nullptr);
  self.state.store(kAwake, std::memory_order_relaxed);
  resting_.fetch_sub(1, std::memory_order_relaxed);
}

bool WorkerPool::Wake(int wanted, int launching_cpu) {
  const int idle =
      sleeping_.load(std::memory_order_relaxed) + resting_.load(std::memory_order_relaxed);
  int missing = wanted - (workers() - idle);
  if (missing <= 0) return false;
  wakes_.fetch_add(1, std::memory_order_relaxed);
  cpu_set_t taken = CpusInUse(-1, launching_cpu);
  for (int number = 0; number < workers() && missing > 0; ++number) {
    Worker& worker = staff_[number];
    uint32_t state = kAsleep;
    if (!worker.state.compare_exchange_strong(state, kWaking, std::memory_order_acquire)) continue;
    sleeping_.fetch_sub(1, std::memory_order_relaxed);
    const int other = worker.detour.Begin(worker.thread.load(std::memory_order_relaxed), taken);
    int cpu = worker.cpu.load(std::memory_order_relaxed);
    if (other >= 0 && CPU_ISSET(cpu, &taken)) {
      cpu = other;
      moved_.fetch_add(1, std::memory_order_relaxed);
    }
    CPU_SET(cpu, &taken);
    worker.cpu.store(cpu, std::memory_order_relaxed);
    worker.state.store(kAwake, std::memory_order_release);
    FutexWake(&worker.state, 1);
    --missing;
  }
  return true;
}

void WorkerPool::ExpectLaunches() {
  const int wanted = wanted_.exchange(0, std::memory_order_relaxed);
  if (wanted == 0 || sleeping_.load(std::memory_order_relaxed) == 0) return;
  expected_.store(true, std::memory_order_relaxed);
  Wake(wanted, sched_getcpu());
}

cpu_set_t WorkerPool::CpusInUse(int but_of, int launching_cpu) const {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (launching_cpu >= 0) CPU_SET(launching_cpu, &set);
  for (int number = 0; number < workers(); ++number) {
    const Worker& worker = staff_[number];
    const int cpu = worker.cpu.load(std::memory_order_relaxed);
    const bool awake = worker.state.load(std::memory_order_relaxed) == kAwake;
    if (number != but_of && awake && cpu >= 0) CPU_SET(cpu, &set);
  }
  return set;
}

bool WorkerPool::LeaveSharedCpu(int number, int launching_cpu) {
  Worker& self = staff_[number];
  const int cpu = sched_getcpu();
  self.cpu.store(cpu, std::memory_order_relaxed);
  bool shared = cpu == launching_cpu;
  for (int other = 0; other < number && !shared; ++other) {  // one of two leaves
    shared = staff_[other].cpu.load(std::memory_order_relaxed) == cpu &&
             staff_[other].state.load(std::memory_order_relaxed) == kAwake;
  }
  if (!shared || self.detour.Begin(0, CpusInUse(number, launching_cpu)) < 0) return false;
  self.detour.End();
  self.cpu.store(sched_getcpu(), std::memory_order_relaxed);
  moved_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace tvm_edge
