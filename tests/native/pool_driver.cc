// Drives the worker pool from several threads and checks every result; tests/native/test_driver.py
// builds it, also with ThreadSanitizer. Arguments: launches of each thread.
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "affinity.h"
#include "worker_pool.h"

namespace {

using tvm_edge::Work;
using tvm_edge::WorkerPool;

constexpr int kLength = 4096;
constexpr int kThreads = 4;

// What launches: not atomic, so that a sanitizer sees a piece that is run twice or read too early.
struct Task {
  WorkerPool* pool;
  std::vector<int64_t> values;
  int extent;
  int rounds;
  int fails_at;
  bool nested;
};

int RunPiece(void* context, int32_t piece, int32_t pieces) {
  auto* task = static_cast<Task*>(context);
  const int step = (task->extent + pieces - 1) / pieces;
  for (int at = piece * step; at < std::min((piece + 1) * step, task->extent); ++at) {
    if (at == task->fails_at) return 7;
    int64_t value = at;
    for (int round = 0; round < task->rounds; ++round) value = value * 31 + 7;
    task->values[at] += value;
  }
  if (task->nested) {
    Task inner{task->pool, std::vector<int64_t>(8), 8, 1, -1, false};
    task->pool->Run({RunPiece, &inner, reinterpret_cast<void*>(&RunPiece)}, kThreads);
  }
  return 0;
}

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::abort();
}

void Launch(WorkerPool* pool, int seed, int launches) {
  std::mt19937 random(seed);
  Task task{pool, std::vector<int64_t>(kLength), 0, 0, -1, false};
  for (int launch = 0; launch < launches; ++launch) {
    task.extent = 1 + static_cast<int>(random() % kLength);
    task.rounds = 1 << (random() % 12);
    task.nested = random() % 16 == 0;
    task.fails_at = random() % 32 == 0 ? static_cast<int>(random() % task.extent) : -1;
    task.values.assign(kLength, 0);
    const Work work{RunPiece, &task, reinterpret_cast<const void*>(uintptr_t(1 + random() % 64))};
    const int status = pool->Run(work, 1 + static_cast<int>(random() % kThreads));
    Check(status == (task.fails_at < 0 ? 0 : 7), "status");
    if (task.fails_at >= 0) continue;
    for (int at = 0; at < task.extent; ++at) {
      int64_t value = at;
      for (int round = 0; round < task.rounds; ++round) value = value * 31 + 7;
      Check(task.values[at] == value, "value");
    }
    if (random() % 64 == 0) usleep(300);  // workers fall asleep
    if (random() % 32 == 0) pool->ExpectLaunches();
  }
}

// Workers that lose their CPU in the middle of a piece, again and again.
void Disturb(const std::atomic<bool>* stop) {
  const int cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  for (int number = 0; !stop->load(); ++number) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(number % cpus, &set);
    sched_setaffinity(0, sizeof(set), &set);
    const int64_t spin = 200'000;
    for (volatile int64_t i = 0; i < spin; i = i + 1) {
    }
  }
}

cpu_set_t CpusOf(pid_t thread) {
  cpu_set_t set;
  Check(sched_getaffinity(thread, sizeof(set), &set) == 0, "affinity");
  return set;
}

// A thread leaves a CPU, and may use it again; what others set meanwhile stays.
void CheckDetour() {
  const cpu_set_t all = CpusOf(0);
  tvm_edge::Detour detour;
  Check(detour.Begin(0, all) == -1, "nowhere to go");
  detour.End();
  cpu_set_t now = CpusOf(0);
  Check(CPU_EQUAL(&now, &all), "nothing begun");
  if (CPU_COUNT(&all) < 2) return;
  for (bool others_set : {false, true}) {
    const int cpu = sched_getcpu();
    cpu_set_t taken;
    CPU_ZERO(&taken);
    CPU_SET(cpu, &taken);
    const int other = detour.Begin(0, taken);
    Check(other >= 0 && other != cpu && sched_getcpu() != cpu, "moved");
    if (others_set) sched_setaffinity(0, sizeof(taken), &taken);
    detour.End();
    now = CpusOf(0);
    Check(CPU_EQUAL(&now, others_set ? &taken : &all), "CPUs after it");
    sched_setaffinity(0, sizeof(all), &all);
  }
}

// Workers that were woken on certain CPUs may use all of them again.
void CheckWorkersMayUse(const cpu_set_t& all) {
  for (int tries = 0;; ++tries) {
    int fewer = 0;
    DIR* tasks = opendir("/proc/self/task");
    while (const dirent* task = readdir(tasks)) {
      if (task->d_name[0] == '.') continue;
      cpu_set_t set;  // a thread that just ended has none
      if (sched_getaffinity(std::atoi(task->d_name), sizeof(set), &set) != 0) continue;
      fewer += !CPU_EQUAL(&set, &all);
    }
    closedir(tasks);
    if (fewer == 0) return;
    Check(tries < 1000, "CPUs of workers");
    usleep(10'000);
  }
}

// A worker whose CPU is busy with others sits out, and is back when they are gone.
void CheckRest(const cpu_set_t& all) {
  if (CPU_COUNT(&all) < 2) return;
  int cpu = 0;
  while (!CPU_ISSET(cpu, &all)) ++cpu;
  // Workers stay for as long as the process does.
  WorkerPool& pool = *new WorkerPool({cpu}, 2, 50'000);
  Check(pool.Reserve(2) == 2, "a worker");
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back([&] {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(cpu, &own);
      sched_setaffinity(0, sizeof(own), &own);
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  }
  Task task{&pool, {}, kLength, 1 << 12, -1, false};
  const auto until = [&](auto done, const char* what) {
    for (int tries = 0; !done(); ++tries) {
      Check(tries < 1000, what);
      task.values.assign(kLength, 0);
      Check(pool.Run({RunPiece, &task, &task}, 2) == 0, "status");
    }
  };
  until([&] { return pool.counts().rests > 0; }, "nobody sat out");
  stop.store(true);
  for (std::thread& thread : busy) thread.join();
  const int64_t helped = pool.counts().helped;
  until([&] { return pool.counts().helped > helped + 10; }, "nobody came back");
}

int RunFor5Us(void*, int32_t, int32_t pieces) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(5) / pieces;
  while (std::chrono::steady_clock::now() < until) {
  }
  return 0;
}

// Kernels too short to wake a worker for do wake one when many follow each other, and only then.
void CheckBursts() {
  static const int site = 0;
  WorkerPool& pool = *new WorkerPool({}, 2, 50'000);
  Check(pool.Reserve(2) == 2, "a worker");
  const Work work{RunFor5Us, nullptr, &site};
  const auto asleep = [&] {
    const int64_t before = pool.counts().sleeps;
    for (int tries = 0; pool.counts().sleeps == before && tries < 1000; ++tries) usleep(1'000);
  };
  for (int i = 0; i < 4; ++i) pool.Run(work, 2);  // how long it takes is known then
  asleep();
  const int64_t before = pool.counts().wakes;
  for (int i = 0; i < 20; ++i) {
    pool.Run(work, 2);
    usleep(1'000);
  }
  Check(pool.counts().wakes == before, "woken for a short kernel");
  for (int tries = 0; pool.counts().wakes == before; ++tries) {
    Check(tries < 100'000, "asleep through a burst");
    pool.Run(work, 2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 2000;
  const cpu_set_t all = CpusOf(0);
  CheckDetour();
  WorkerPool pool({}, kThreads + 2, 50'000);
  Check(pool.Reserve(kThreads) == kThreads, "workers");
  std::atomic<bool> stop{false};
  std::vector<std::thread> disturbing, threads;
  for (int i = 0; i < 2; ++i) disturbing.emplace_back(Disturb, &stop);
  for (int seed = 0; seed < kThreads; ++seed) threads.emplace_back(Launch, &pool, seed, launches);
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  for (std::thread& thread : disturbing) thread.join();
  const tvm_edge::PoolCounts counts = pool.counts();
  std::printf("launches %lld helped %lld sleeps %lld moved %lld\n",
              static_cast<long long>(counts.launches), static_cast<long long>(counts.helped),
              static_cast<long long>(counts.sleeps), static_cast<long long>(counts.moved));
  CheckWorkersMayUse(all);
  Check(counts.helped > 0, "nobody helped");
  CheckRest(all);
  CheckBursts();

#ifndef TVM_EDGE_NO_FORK
  pool.LockForFork();
  const pid_t child = fork();
  if (child == 0) {
    pool.RestartInChild();
    Check(pool.workers() == 0, "workers of the parent");
    Launch(&pool, 100, 100);  // alone
    Check(pool.Reserve(kThreads) == kThreads, "workers of the child");
    Launch(&pool, 101, 100);
    _exit(0);
  }
  pool.UnlockInParent();
  int status = 0;
  waitpid(child, &status, 0);
  Check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child");
#endif
  return 0;
}
