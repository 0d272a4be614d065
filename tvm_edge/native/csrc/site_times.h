// How long kernels take, by the place in the code that launches them.
#pragma once

#include <atomic>
#include <cstdint>

namespace tvm_edge {

/*!
 * \brief Work of kernels in nanoseconds, as earlier launches took.
 *
 * A table of fixed size that threads read and write without a lock. Of two kernels that fall on one
 * entry the later one has it; what is expected of a kernel decides how it is cut, never its result.
 */
class SiteTimes {
 public:
  /*! \brief Expected work of all pieces; a kernel that was not seen is taken to be worth sharing. */
  int64_t Expected(const void* site) const {
    const Entry& entry = entries_[Place(site)];
    if (entry.site.load(std::memory_order_relaxed) != site) return kUnknownNs;
    return entry.work.load(std::memory_order_relaxed);
  }

  /*!
   * \brief Note what a launch took.
   *
   * The expectation falls at once and rises slowly: what takes longer was mostly interrupted.
   */
  void Note(const void* site, int64_t work) {
    Entry& entry = entries_[Place(site)];
    if (entry.site.load(std::memory_order_relaxed) != site) {
      entry.site.store(site, std::memory_order_relaxed);
      entry.work.store(work, std::memory_order_relaxed);
      return;
    }
    const int64_t known = entry.work.load(std::memory_order_relaxed);
    const int64_t most = known + known / 8 + 100;
    entry.work.store(work < most ? (known + work) / 2 : most, std::memory_order_relaxed);
  }

 private:
  static constexpr int kEntries = 4096;
  static constexpr int64_t kUnknownNs = 50'000;

  struct Entry {
    std::atomic<const void*> site{nullptr};
    std::atomic<int64_t> work{0};
  };

  static uint32_t Place(const void* site) {
    const auto address = reinterpret_cast<uintptr_t>(site);
    return static_cast<uint32_t>((static_cast<uint64_t>(address) * 0x9E3779B97F4A7C15ull) >> 52);
  }

  Entry entries_[kEntries];
};

/*! \brief The table of this process. */
inline SiteTimes& site_times() {
  static SiteTimes times;
  return times;
}

}  // namespace tvm_edge
