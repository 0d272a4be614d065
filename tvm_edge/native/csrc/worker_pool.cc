#include "worker_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "futex.h"
#include "interruptions.h"
#include "site_times.h"
#include "subnormals.h"

namespace tvm_edge {
namespace {

constexpr uint32_t kOpen = 1u << 31;     // workers may join
constexpr uint32_t kWaiting = 1u << 30;  // the launching thread sleeps until the last one leaves
constexpr uint32_t kJoined = kWaiting - 1;

// A kernel of less is done before a worker has noticed it.
constexpr int64_t kShareNs = 4'000;
// A kernel of less is done before a worker that sleeps is there: it is not worth waking one.
constexpr int64_t kWakeNs = 20'000;
// Shorter ones are, if many follow each other: a worker needs 0.1 ms and more until it runs.
constexpr int64_t kBurstNs = 100'000;
// Least work in a piece where a kernel is cut into more pieces than threads.
constexpr int64_t kPieceNs = 12'000;
// Most pieces for each thread.
constexpr int kMostPerThread = 4;
// An uneven launch counts so much, an even one takes 1 away; kernels are cut fine above a threshold.
// One launch in sixteen may be late without that, as the first after a pause is.
constexpr int kUneven = 16;
constexpr int kFineFrom = 48;
constexpr int kMostUneven = 512;
// How long a thread without a piece looks for the others to finish theirs, at most; the launching
// one for as long as two pieces take. A core whose thread sleeps is free for one that waits for it.
constexpr int64_t kMostWaitNs = 1'000'000;
// How long after a look for others on its CPU a worker looks again; the most where it often moved.
constexpr int64_t kLookNs = 1'000'000;
constexpr int64_t kMostLookNs = 64'000'000;
// Looks at memory between two looks at the clock.
constexpr int kLooks = 16;

// Whether this thread is in a piece: a kernel launched there runs alone.
thread_local bool in_piece = false;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t Bits(int count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

/*! \brief The pieces of a thread, if all have as many. */
uint64_t HomeBits(int home, int threads, int pieces) {
  const int begin = static_cast<int>(static_cast<int64_t>(home) * pieces / threads);
  const int end = static_cast<int>(static_cast<int64_t>(home + 1) * pieces / threads);
  return Bits(end) & ~Bits(begin);
}

}  // namespace

WorkerPool::WorkerPool(std::vector<int> cpus, int capacity, int64_t spin_ns)
    : cpus_(std::move(cpus)), spin_ns_(spin_ns), capacity_(capacity) {}

// ------------------------------------------------------------------------------------ launches

int WorkerPool::Run(const Work& work, int threads) {
  launches_.fetch_add(1, std::memory_order_relaxed);
  threads = std::min(
      {threads, kMostPieces, workers() + 1 - resting_.load(std::memory_order_relaxed)});
  const int64_t expected = site_times().Expected(work.site);
  const int launching = launching_.fetch_add(1, std::memory_order_relaxed) + 1;
  const bool share = threads > 1 && !in_piece && expected >= kShareNs &&
                     launching < capacity_.load(std::memory_order_relaxed);
  Slot* slot = share ? TakeSlot() : nullptr;
  if (slot == nullptr) {
    alone_.fetch_add(1, std::memory_order_relaxed);
    const bool outer = std::exchange(in_piece, true);
    const int64_t begin = threads > 1 && !outer ? Now() : 0;
    const int status = work.run(work.context, 0, 1);
    if (begin != 0) site_times().Note(work.site, Now() - begin);
    in_piece = outer;
    launching_.fetch_sub(1, std::memory_order_relaxed);
    return status;
  }

  const bool fine = uneven_.load(std::memory_order_relaxed) >= kFineFrom;
  int per_thread = 1;
  if (fine) {
    const int64_t most = expected / (threads * kPieceNs);
    per_thread = static_cast<int>(std::clamp<int64_t>(most, 1, kMostPerThread));
    per_thread = std::min(per_thread, kMostPieces / threads);
  }
  slot->work = work;
  slot->threads = threads;
  slot->cpu = sched_getcpu();
  slot->pieces = threads * per_thread;
  slot->status.store(0, std::memory_order_relaxed);
  slot->left.store(INT64_MAX, std::memory_order_relaxed);
  slot->limit.store(static_cast<uint32_t>(threads - 1), std::memory_order_relaxed);
  slot->unclaimed.store(Bits(slot->pieces), std::memory_order_relaxed);
  slot->gate.store(kOpen, std::memory_order_release);
  // In one order with what a worker does before it sleeps: it sees this, or is seen to sleep.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (expected_.load(std::memory_order_relaxed)) expected_.store(false, std::memory_order_relaxed);
  const int64_t launched = Now();
  const bool sleepers = sleeping_.load(std::memory_order_seq_cst) > 0;
  const bool worth = expected >= kWakeNs || (sleepers && EndsBurst(expected, launched));
  if (worth && wanted_.load(std::memory_order_relaxed) < threads - 1) {
    wanted_.store(threads - 1, std::memory_order_relaxed);
  }
  const bool woke = worth && sleepers && Wake(threads - 1, slot->cpu);

  const int64_t begin = woke ? Now() : launched;
  const int done = RunPieces(slot, 0, false);
  const int64_t all_begun = Now();
  const int64_t own = all_begun - begin;
  WaitForWorkers(slot, std::min(kMostWaitNs, 2 * own / std::max(done, 1)));

  if (done > 0) site_times().Note(work.site, own * slot->pieces / done);
  if (!woke) {
    const int64_t waited = Now() - all_begun;
    const int64_t idle = all_begun - slot->left.load(std::memory_order_relaxed);
    NoteBalance(done > per_thread || std::max(waited, done == 1 ? idle : 0) > own / 2 + kPieceNs);
  }
  const int status = slot->status.load(std::memory_order_relaxed);
  slot->taken.store(false, std::memory_order_release);
  launching_.fetch_sub(1, std::memory_order_relaxed);
  return status;
}

bool WorkerPool::EndsBurst(int64_t work, int64_t now) {
  // What a worker would not have stayed awake for is another burst.
  const bool goes_on = now - short_at_.load(std::memory_order_relaxed) < spin_ns_;
  const int64_t sum = work + (goes_on ? short_ns_.load(std::memory_order_relaxed) : 0);
  const bool ends = sum >= kBurstNs;
  short_ns_.store(ends ? 0 : sum, std::memory_order_relaxed);
  short_at_.store(now + work, std::memory_order_relaxed);
  return ends;
}

void WorkerPool::NoteBalance(bool uneven) {
  const int before = uneven_.load(std::memory_order_relaxed);
  if (uneven) {
    uneven_.store(std::min(before + kUneven, kMostUneven), std::memory_order_relaxed);
  } else if (before > 0) {
    uneven_.store(before - 1, std::memory_order_relaxed);
  }
}

WorkerPool::Slot* WorkerPool::TakeSlot() {
  for (Slot& slot : slots_) {
    if (!slot.taken.load(std::memory_order_relaxed) &&
        !slot.taken.exchange(true, std::memory_order_acquire)) {
      return &slot;
    }
  }
  return nullptr;
}

int WorkerPool::Claim(Slot* slot, int home) const {
  uint64_t unclaimed = slot->unclaimed.load(std::memory_order_relaxed);
  const uint64_t own = HomeBits(home, slot->threads, slot->pieces);
  while (unclaimed != 0) {
    // One's own from the first on, those of others from the last on: they begin with the first.
    const bool at_home = (unclaimed & own) != 0;
    const int piece =
        at_home ? __builtin_ctzll(unclaimed & own) : 63 - __builtin_clzll(unclaimed);
    const uint64_t bit = uint64_t{1} << piece;
    unclaimed = slot->unclaimed.fetch_and(~bit, std::memory_order_relaxed);
    if (unclaimed & bit) return piece;
  }
  return -1;
}

int WorkerPool::RunPieces(Slot* slot, int home, bool is_worker) {
  const bool outer = std::exchange(in_piece, true);
  int done = 0;
  for (;;) {
    const int piece = Claim(slot, home);
    if (piece < 0) break;
    const int status = slot->work.run(slot->work.context, piece, slot->pieces);
    ++done;
    if (status != 0) {
      slot->status.store(status, std::memory_order_relaxed);
      slot->unclaimed.store(0, std::memory_order_relaxed);
    }
    if (is_worker && Crowded()) break;
  }
  in_piece = outer;
  return done;
}

void WorkerPool::WaitForWorkers(Slot* slot, int64_t spin_ns) {
  uint32_t gate = slot->gate.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  if ((gate & kJoined) == 0) return;
  const int64_t until = Now() + spin_ns;
  do {
    for (int look = 0; look < kLooks; ++look) {
      gate = slot->gate.load(std::memory_order_acquire);
      if ((gate & kJoined) == 0) return;
      Pause();
    }
  } while (Now() < until);
  waited_.fetch_add(1, std::memory_order_relaxed);
  gate = slot->gate.fetch_or(kWaiting, std::memory_order_acq_rel) | kWaiting;
  while ((gate & kJoined) != 0) {
    FutexWait(&slot->gate, gate);
    gate = slot->gate.load(std::memory_order_acquire);
  }
}

// ------------------------------------------------------------------------------------- workers

bool WorkerPool::Crowded() const {
  return launching_.load(std::memory_order_relaxed) + helping_.load(std::memory_order_relaxed) >
         capacity_.load(std::memory_order_relaxed);
}

WorkerPool::Stint WorkerPool::Help(int number) {
  Stint stint;
  for (Slot& slot : slots_) {
    uint32_t gate = slot.gate.load(std::memory_order_acquire);
    while ((gate & kOpen) != 0 && slot.unclaimed.load(std::memory_order_relaxed) != 0 &&
           (gate & kJoined) < slot.limit.load(std::memory_order_relaxed)) {
      helping_.fetch_add(1, std::memory_order_relaxed);
      if (Crowded()) {
        helping_.fetch_sub(1, std::memory_order_relaxed);
        return stint;
      }
      if (slot.gate.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
        const int64_t begin = Now();
        const int done = RunPieces(&slot, 1 + number % std::max(slot.threads - 1, 1), true);
        const int64_t left = Now();
        slot.left.store(left, std::memory_order_relaxed);
        stint = {begin, left, (left - begin) / std::max(done, 1), slot.cpu};
        const uint32_t before = slot.gate.fetch_sub(1, std::memory_order_acq_rel);
        if ((before & kJoined) == 1 && (before & kWaiting) != 0) FutexWake(&slot.gate, 1);
        helping_.fetch_sub(1, std::memory_order_relaxed);
        helped_.fetch_add(1, std::memory_order_relaxed);
        break;
      }
      helping_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  return stint;
}

void WorkerPool::WorkerLoop(int number) {
  int64_t since = Now();  // when it had nothing to do any more
  int64_t until = since + spin_ns_;
  int64_t patience = kMostWaitNs;  // until the first piece
  int64_t look_at = 0;             // when to look for others on this CPU
  int64_t look_ns = kLookNs;
  Interruptions interruptions;
  interruptions.Begin(since);
  for (;;) {
    const uint32_t seen = epoch_.load(std::memory_order_seq_cst);
    if (const Stint stint = Help(number); stint.left != 0) {
      since = stint.left;
      if (const int64_t rest = interruptions.Rest(stint.begin, stint.left); rest != 0) {
        SitOut(number, rest);
        since = Now();
        interruptions.Begin(since);
      }
      until = since + spin_ns_;
      patience = std::min(kMostWaitNs, 2 * stint.piece_ns) + spin_ns_;
      if (since >= look_at) {
        // Where the system puts threads on one CPU again and again it has reasons.
        const bool moved = LeaveSharedCpu(number, stint.launching_cpu);
        look_ns = moved ? std::min(2 * look_ns, kMostLookNs) : kLookNs;
        look_at = since + look_ns;
      }
      continue;
    }
    for (int64_t now = since; epoch_.load(std::memory_order_relaxed) == seen; now = Now()) {
      // While a kernel is at work the next one is near: one that came too late for this kernel
      // would come too late for every one if it slept until then.
      const bool expected = expected_.load(std::memory_order_relaxed);
      const bool near = (expected && now - since < kMostWaitNs) ||
                        (launching_.load(std::memory_order_relaxed) > 0 && now - since < patience);
      if (near) until = std::max(until, now + spin_ns_);
      if (now > until) {
        Sleep(number, seen);
        since = Now();
        interruptions.Begin(since);
        until = since + spin_ns_;
        break;
      }
      for (int look = 0; look < kLooks && epoch_.load(std::memory_order_relaxed) == seen; ++look) {
        Pause();
      }
    }
  }
}

// ----------------------------------------------------------------------------- starting workers

struct WorkerPool::Start {
  WorkerPool* pool;
  int number;
};

void* WorkerPool::ThreadMain(void* start) {
  const Start given = *static_cast<Start*>(start);
  delete static_cast<Start*>(start);
  Worker& self = given.pool->staff_[given.number];
  self.cpu.store(sched_getcpu(), std::memory_order_relaxed);
  self.thread.store(ThreadId(), std::memory_order_relaxed);
  const SubnormalsAreZero all_its_life;
  given.pool->WorkerLoop(given.number);
  return nullptr;
}

int WorkerPool::AllowedCpus() const {
  cpu_set_t all;
  CPU_ZERO(&all);
  const pid_t worker = staff_[0].thread.load(std::memory_order_relaxed);
  // A worker apart from the caller, which may have bound itself to one CPU.
  for (pid_t thread : {pid_t{0}, worker}) {
    cpu_set_t set;
    if (sched_getaffinity(thread, sizeof(set), &set) == 0) CPU_OR(&all, &all, &set);
  }
  return CPU_COUNT(&all);
}

int WorkerPool::Reserve(int threads) {
  const int wanted = std::min(threads, kMostPieces) - 1;
  if (workers() >= wanted) return threads;
  std::lock_guard<std::mutex> lock(growing_);
  sigset_t all, before;
  sigfillset(&all);  // signals are the program's own threads', but for those of what a kernel does
  for (int signal : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, signal);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (workers() < wanted) {
    const int number = workers();
    auto* start = new Start{this, number};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
#ifdef __GLIBC__
    const cpu_set_t set = WorkerCpus(cpus_);
    pthread_attr_setaffinity_np(&attributes, sizeof(set), &set);
#endif
    pthread_t thread;
    const int failed = pthread_create(&thread, &attributes, ThreadMain, start);
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
      delete start;
      break;
    }
    char name[16];
    std::snprintf(name, sizeof(name), "tvm-edge-%d", number);
    pthread_setname_np(thread, name);
    workers_.store(number + 1, std::memory_order_relaxed);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return std::min(threads, workers() + 1);
}

void WorkerPool::RaiseCapacity(int capacity) {
  int before = capacity_.load(std::memory_order_relaxed);
  while (before < capacity &&
         !capacity_.compare_exchange_weak(before, capacity, std::memory_order_relaxed)) {
  }
}

void WorkerPool::RestartInChild() {
  workers_.store(0);
  for (Worker& worker : staff_) {
    worker.thread.store(0);
    worker.state.store(kAwake);
    worker.detour = {};
  }
  sleeping_.store(0);
  resting_.store(0);
  launching_.store(0);
  helping_.store(0);
  for (Slot& slot : slots_) {
    slot.gate.store(0);
    slot.unclaimed.store(0);
    slot.taken.store(false);
  }
  growing_.unlock();
}

PoolCounts WorkerPool::counts() const {
  return {launches_.load(std::memory_order_relaxed), alone_.load(std::memory_order_relaxed),
          helped_.load(std::memory_order_relaxed),   wakes_.load(std::memory_order_relaxed),
          sleeps_.load(std::memory_order_relaxed),   waited_.load(std::memory_order_relaxed),
          moved_.load(std::memory_order_relaxed),
          rests_.load(std::memory_order_relaxed)};
}

}  // namespace tvm_edge
