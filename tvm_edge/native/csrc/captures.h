// Runs that record a CUDA graph, and whatever would be in their way.
//
// While TVM captures launches, CUDA refuses what any other thread of the process sends to the
// default stream, and that breaks the capture as well (cudaErrorStreamCaptureImplicit). So a run
// that records has the GPU's driver for itself; all others share it.
//
// When that is, TVM alone knows: it records a region when a run first comes to it, which for a
// region in a branch may be any run, and again for other shapes. It then calls the region's function
// instead of replaying what it recorded. So that function begins with a call of
// vm.builtin.tvm_edge.recording, which the compiler writes there
// (relay_passes/instructions/announce_recordings.py); what is replayed calls nothing.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

namespace tvm_edge {

/*! \brief A lock that many share, and that one of them may have alone from some point on. */
class Captures {
 public:
  /*! \brief The one of this process's CUDA driver; it is never freed. */
  static Captures& Global();

  /*!
   * \brief While it lives, this thread works with the GPU. Waits for whoever is alone or waits to
   * be. A thread that has the lock may take it again: that changes nothing.
   */
  class Shared {
   public:
    explicit Shared(Captures* captures = &Global());
    ~Shared();
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

   private:
    Captures* captures_;
    bool outermost_;
  };

  /*!
   * \brief Let nobody else work with the GPU until the thread gives back what it shares.
   *
   * While it waits for that it shares nothing, so that of two who want it one gets it: another may
   * work in between. Nothing happens where the thread does not share the lock.
   */
  void StayAlone();

 private:
  struct Turn {
    Captures* captures = nullptr;  // null: the thread has none
    bool alone = false;
  };
  static Turn& OwnTurn();

  std::mutex lock_;
  std::condition_variable changed_;
  int sharing_ = 0;
  std::deque<const Turn*> alone_;  // the first of them works when nobody shares
};

/*! \brief Add vm.builtin.tvm_edge.recording to TVM's registry. */
void RegisterCaptures();

}  // namespace tvm_edge
