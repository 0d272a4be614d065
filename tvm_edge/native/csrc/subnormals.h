// Subnormal numbers count as zero while kernels run.
#pragma once

#include <cstdint>

namespace tvm_edge {

/*!
 * \brief While it lives, the calling thread takes subnormal operands for zero and makes no
 * subnormal results.
 *
 * A CPU calculates with them 10 to 100 times slower. The thread's own setting is put back.
 */
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(Read()) {
    if ((before_ & kBits) != kBits) Write(before_ | kBits);
  }
  ~SubnormalsAreZero() {
    if ((before_ & kBits) == kBits) return;
    // Exceptions that kernels raised stay raised, as they do after any arithmetic.
    Write(Read() & ~(kBits & ~before_));
  }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kBits = 0x8040;  // MXCSR: flush to zero, denormals are zero
  static Word Read() { return __builtin_ia32_stmxcsr(); }
  static void Write(Word word) { __builtin_ia32_ldmxcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kBits = Word{1} << 24;  // FPCR.FZ: operands and results
  static Word Read() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void Write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = uint32_t;
  static constexpr Word kBits = 0;
  static Word Read() { return 0; }
  static void Write(Word) {}
#endif

  const Word before_;
};

}  // namespace tvm_edge
