/*!
 * \file page_guard.cc
 * \brief Files that are mapped for kernels to read, and that somebody cuts meanwhile.
 *
 * A kernel that reads behind the new end gets SIGBUS, in whichever thread of TVM's or a driver's
 * it runs, and nothing can unwind from there. So the handler puts pages of zeros where the file
 * was, the kernel goes on, and whoever started it asks afterwards.
 */
#include "page_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

namespace {

/*! \brief A mapped file. Never freed, since a handler may look at it; used again instead. */
struct Guard {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0: nobody's
  std::atomic<bool> lost{false};
  Guard* next = nullptr;
};

std::atomic<Guard*> guards{nullptr};
std::atomic<uintptr_t> handed_on{0};  // the last address that was not ours
std::mutex registering;
// Whose signal it was before. The handler may read it at any moment: each is complete before it is
// here, and none is ever freed.
std::atomic<const struct sigaction*> before{nullptr};

bool Replace(uintptr_t address) {
  static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (Guard* guard = guards.load(); guard; guard = guard->next) {
    const uintptr_t end = guard->end.load();
    const uintptr_t begin = guard->begin.load();
    // The second look: it may have become another file's in between.
    if (address < begin || address >= end || guard->end.load() != end) continue;
    guard->lost.store(true);
    const uintptr_t first = address / page * page;
    // All that is behind it is gone as well. Zeros that nobody writes take no memory.
    return mmap(reinterpret_cast<void*>(first), end - first, PROT_READ,
                MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED;
  }
  return false;
}

void Handle(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const bool replaced =
      info->si_code == BUS_ADRERR && Replace(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = error;
  if (replaced) return;
  // Whoever had the signal came back and left it to us: it would come for ever.
  if (handed_on.exchange(reinterpret_cast<uintptr_t>(info->si_addr)) ==
          reinterpret_cast<uintptr_t>(info->si_addr) &&
      info->si_code > 0) {
    signal(number, SIG_DFL);
    return;
  }
  const struct sigaction* previous = before.load();
  if (previous->sa_flags & SA_SIGINFO) {
    previous->sa_sigaction(number, info, context);
  } else if (previous->sa_handler != SIG_DFL && previous->sa_handler != SIG_IGN) {
    previous->sa_handler(number);
  } else if (info->si_code > 0 || previous->sa_handler == SIG_DFL) {
    // A fault comes again at once, and what somebody sent is sent again.
    sigaction(number, previous, nullptr);
    if (info->si_code <= 0) raise(number);
  }
}

/*!
 * \brief Take over SIGBUS, if it is not ours.
 *
 * Drivers that are compilers take it while they compile, and LLVM's handler gives up the signal
 * before it gives it back: a second thread that reads there meanwhile would end the process.
 */
void Install() {
  struct sigaction now{};
  const auto is_ours = [&now] {
    sigaction(SIGBUS, nullptr, &now);
    return (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == Handle;
  };
  if (is_ours()) return;
  const std::lock_guard<std::mutex> lock(registering);
  if (is_ours()) return;  // another thread was faster
  const struct sigaction* known = before.load();
  // Mostly it is the one from which we took it the last time.
  if (known == nullptr || std::memcmp(known, &now, sizeof(now)) != 0) {
    known = new (std::nothrow) struct sigaction(now);
    if (known == nullptr) return;  // reads of lost pages end the process, as without us
  }
  struct sigaction ours{};
  ours.sa_sigaction = Handle;
  sigemptyset(&ours.sa_mask);
  // Threads that have a stack for signals have it because theirs may be used up.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  before.store(known);  // there before the handler is
  sigaction(SIGBUS, &ours, nullptr);
}

Guard* Unused() {
  for (Guard* guard = guards.load(); guard; guard = guard->next) {
    if (!guard->end.load()) return guard;
  }
  Guard* guard = new (std::nothrow) Guard;
  if (guard) {
    guard->next = guards.load();
    guards.store(guard);
  }
  return guard;
}

}  // namespace

void* TvmEdgeGuardPages(void* address, size_t nbytes) {
  Install();
  const std::lock_guard<std::mutex> lock(registering);
  Guard* guard = Unused();
  if (guard) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
    guard->begin.store(begin);
    guard->lost.store(false);
    guard->end.store(begin + nbytes);
  }
  return guard;
}

int TvmEdgePagesLost(void* guard) {
  Install();
  return static_cast<Guard*>(guard)->lost.load();
}

void TvmEdgeReleasePages(void* guard) {
  const std::lock_guard<std::mutex> lock(registering);
  static_cast<Guard*>(guard)->end.store(0);
}
