// What the operating system takes from a thread that works (Linux).
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace tvm_edge {

/*!
 * \brief Tells a worker to leave kernels alone while its CPU is busy with others.
 *
 * A worker that is interrupted in a piece holds up the whole kernel for a time slice of the system
 * or more. Without that worker the kernel takes little longer, as the others take its pieces.
 */
class Interruptions {
 public:
  /*! \brief Count from here: the thread did not want to run before. */
  void Begin(int64_t now) { Look(now); }

  /*!
   * \brief Return how long the calling thread should sit out, 0 if not at all.
   * \param begin When the thread began its last pieces.
   * \param end When it had done them.
   */
  int64_t Rest(int64_t begin, int64_t end) {
    if (end - begin < kLongNs) return 0;
    const int64_t ran = ran_ns_, since = since_, interrupted = interrupted_;
    Look(end);
    const int64_t lost = (end - since) - (ran_ns_ - ran);
    if (interrupted_ == interrupted || lost < kLongNs || 2 * lost < end - since) return 0;
    // Where it happens again soon after the last rest, the others are there to stay.
    rest_ns_ = end - rested_ < rest_ns_ ? std::min(2 * rest_ns_, kMostRestNs) : kLeastRestNs;
    rested_ = end + rest_ns_;
    return rest_ns_;
  }

 private:
  static constexpr int64_t kLongNs = 1'000'000;
  static constexpr int64_t kLeastRestNs = 16'000'000;
  static constexpr int64_t kMostRestNs = 1'000'000'000;

  void Look(int64_t now) {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    const auto us = [](const timeval& t) { return int64_t{t.tv_sec} * 1'000'000 + t.tv_usec; };
    ran_ns_ = 1'000 * (us(usage.ru_utime) + us(usage.ru_stime));
    interrupted_ = usage.ru_nivcsw;
    since_ = now;
  }

  int64_t since_ = 0;        // of the last look
  int64_t ran_ns_ = 0;       // until then
  int64_t interrupted_ = 0;  // times, until then
  int64_t rest_ns_ = kLeastRestNs;
  int64_t rested_ = INT64_MIN / 2;  // when the last rest ended
};

}  // namespace tvm_edge
