// Threads that share the pieces of a kernel with the thread that launches it.
//
// Nothing here knows TVM or Python: parallel_launch.cc puts the pool under compiled kernels.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "affinity.h"

namespace tvm_edge {

/*! \brief A kernel: run(context, piece, pieces) for each piece once, by any thread, in any order. */
struct Work {
  /*! \brief Returns 0, or what the launch is to return. */
  int (*run)(void* context, int32_t piece, int32_t pieces);
  void* context;
  /*! \brief What is the same for all launches of a kernel; its duration is remembered by it. */
  const void* site;
};

/*! \brief What a pool has done; for tests and for those who wonder. */
struct PoolCounts {
  int64_t launches = 0;
  int64_t alone = 0;    // by the launching thread, nothing shared
  int64_t helped = 0;   // times that a worker joined a launch
  int64_t wakes = 0;    // times that sleeping workers were woken
  int64_t sleeps = 0;   // times that a worker went to sleep
  int64_t waited = 0;   // times that a launching thread slept until a worker had finished a piece
  int64_t moved = 0;    // times that a worker left a CPU that another thread of a launch was on
  int64_t rests = 0;    // times that a worker sat out, as others had its CPU
};

/*! \brief Workers for launches of any number of threads at once. */
class WorkerPool {
 public:
  /*!
   * \param cpus CPUs that the workers keep to; empty: all that the process may use.
   * \param capacity Threads that are to work at the same time, launching ones counted.
   * \param spin_ns How long a worker looks for the next kernel before it sleeps.
   */
  WorkerPool(std::vector<int> cpus, int capacity, int64_t spin_ns);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /*!
   * \brief Run all pieces of a kernel on up to so many threads; the calling one takes part.
   *
   * Returns when all pieces are done. No worker is waited for that has not begun a piece.
   * \return 0, or what one of the pieces returned.
   */
  int Run(const Work& work, int threads);

  /*!
   * \brief Say that kernels will come soon: workers get up now if those of the run before
   * wanted them.
   */
  void ExpectLaunches();

  /*!
   * \brief Have workers for launches of so many threads.
   * \return Threads that there are, the calling one counted: fewer where the system refuses more.
   */
  int Reserve(int threads);

  /*! \brief CPUs that the calling thread and the workers may use now, all together. */
  int AllowedCpus() const;

  /*! \brief Set how many threads are to work at the same time, if that is more than before. */
  void RaiseCapacity(int capacity);

  /*! \brief What was done since the pool was made. */
  PoolCounts counts() const;

  /*! \brief Workers that were started. */
  int workers() const { return workers_.load(std::memory_order_relaxed); }

  /*! \brief Before a fork: nobody starts workers. */
  void LockForFork() { growing_.lock(); }
  /*! \brief After it, in the parent. */
  void UnlockInParent() { growing_.unlock(); }
  /*! \brief After it, in the child: the workers stayed behind, launches of other threads too. */
  void RestartInChild();

 private:
  static constexpr int kSlots = 64;  // launches at the same time that are shared
  static constexpr int kMostPieces = 64;

  /*!
   * \brief A launch that workers may join.
   *
   * Slots live as long as the pool, so that a late worker may look at one that is closed, or that
   * has another launch by now. What it reads of a launch it reads after it joined.
   */
  struct alignas(64) Slot {
    // kOpen, kWaiting, and below them the number of workers that joined and did not leave.
    std::atomic<uint32_t> gate{0};
    std::atomic<uint32_t> limit{0};  // workers that may join
    std::atomic<bool> taken{false};  // by a launching thread
    // A bit for each piece that nobody has begun.
    alignas(64) std::atomic<uint64_t> unclaimed{0};
    std::atomic<int> status{0};
    std::atomic<int64_t> left{0};  // when the last worker so far found nothing more
    Work work{};
    int32_t pieces = 0;
    int32_t threads = 0;
    int32_t cpu = 0;  // of the launching thread
  };

  /*! \brief What a worker did for a launch: when it began and left, or 0; what a piece took. */
  struct Stint {
    int64_t begin = 0;
    int64_t left = 0;
    int64_t piece_ns = 0;
    int launching_cpu = -1;
  };

  /*!
   * \brief A worker, as others see it.
   *
   * Linux likes to wake a thread on the CPU of the one that wakes it. In a virtual machine it does
   * so although others are idle, as those look preempted by the host, and leaves the thread there
   * until its next tick (4 ms). Whoever wakes a worker therefore looks where it would come up.
   */
  struct alignas(64) Worker {
    std::atomic<uint32_t> state{kAwake};
    std::atomic<int> cpu{-1};  // where it was last seen
    std::atomic<pid_t> thread{0};
    Detour detour;  // of whoever changed the state to kWaking, then of the worker
  };
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kAsleep = 1;
  static constexpr uint32_t kWaking = 2;
  static constexpr uint32_t kResting = 3;

  struct Start;
  static void* ThreadMain(void* start);
  void WorkerLoop(int number);
  Stint Help(int number);
  int Claim(Slot* slot, int home) const;
  int RunPieces(Slot* slot, int home, bool is_worker);
  Slot* TakeSlot();
  void WaitForWorkers(Slot* slot, int64_t spin_ns);
  bool Wake(int wanted, int launching_cpu);
  bool LeaveSharedCpu(int number, int launching_cpu);
  cpu_set_t CpusInUse(int but_of, int launching_cpu) const;
  /*! \brief Add a kernel to those that found workers asleep; whether they are worth waking now. */
  bool EndsBurst(int64_t work, int64_t now);
  void NoteBalance(bool uneven);
  void Sleep(int number, uint32_t seen);
  void SitOut(int number, int64_t rest_ns);
  bool Crowded() const;

  const std::vector<int> cpus_;
  const int64_t spin_ns_;
  std::atomic<int> capacity_;
  std::mutex growing_;
  std::atomic<int> workers_{0};
  Slot slots_[kSlots];
  Worker staff_[kMostPieces];

  // Counts launches: a worker that saw nothing to do waits until it changes.
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<int> resting_{0};
  alignas(64) std::atomic<int> launching_{0};
  std::atomic<int> helping_{0};
  std::atomic<int> wanted_{0};     // workers that launches since the last ExpectLaunches wanted
  std::atomic<bool> expected_{false};  // since then there was no launch
  std::atomic<int> uneven_{0};  // rises when a launch has to wait for a thread, or one for it

  std::atomic<int64_t> short_ns_{0};  // work of short kernels in a row that found workers asleep
  std::atomic<int64_t> short_at_{0};  // when the last of them was to end

  alignas(64) std::atomic<int64_t> launches_{0};
  std::atomic<int64_t> alone_{0};
  std::atomic<int64_t> helped_{0};
  std::atomic<int64_t> wakes_{0};
  std::atomic<int64_t> sleeps_{0};
  std::atomic<int64_t> waited_{0};
  std::atomic<int64_t> moved_{0};
  std::atomic<int64_t> rests_{0};
};

}  // namespace tvm_edge
