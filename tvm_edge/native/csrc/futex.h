// Waiting for a word of memory to change (Linux).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace tvm_edge {

static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex is a word");

/*! \brief Sleep while a word has a value; may return for no reason. */
inline void FutexWait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr,
          0);
}

/*! \brief Wake up to so many that wait for a word. */
inline void FutexWake(std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr,
          0);
}

/*! \brief Tell the core that this thread only looks at memory. */
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // yield does nothing on most cores
#endif
}

}  // namespace tvm_edge
