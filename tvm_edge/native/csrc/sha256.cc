#include "sha256.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tvm_edge {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t Rotated(uint32_t x, int bits) { return (x >> bits) | (x << (32 - bits)); }

void AddBlocks(uint32_t* state, const unsigned char* data, size_t blocks) {
  for (; blocks; --blocks, data += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      uint32_t word;
      std::memcpy(&word, data + 4 * i, 4);
      w[i] = __builtin_bswap32(word);
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t x = w[i - 15], y = w[i - 2];
      w[i] = w[i - 16] + (Rotated(x, 7) ^ Rotated(x, 18) ^ (x >> 3)) + w[i - 7] +
             (Rotated(y, 17) ^ Rotated(y, 19) ^ (y >> 10));
    }
    uint32_t s[8];
    std::copy(state, state + 8, s);
    for (int i = 0; i < 64; ++i) {
      const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
      const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
      const uint32_t first =
          s[7] + (Rotated(s[4], 6) ^ Rotated(s[4], 11) ^ Rotated(s[4], 25)) + choice + kRound[i] + w[i];
      const uint32_t second = (Rotated(s[0], 2) ^ Rotated(s[0], 13) ^ Rotated(s[0], 22)) + majority;
      std::copy_backward(s, s + 7, s + 8);
      s[4] += first;
      s[0] = first + second;
    }
    for (int i = 0; i < 8; ++i) state[i] += s[i];
  }
}

#if defined(__x86_64__)
/*! \brief The same in Intel's SHA extensions: two rounds an instruction. */
__attribute__((target("sha,sse4.1,ssse3"))) void AddBlocksSha(uint32_t* state,
                                                              const unsigned char* data,
                                                              size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  // The instructions want ABEF and CDGH.
  __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  low = _mm_shuffle_epi32(low, 0xb1);
  high = _mm_shuffle_epi32(high, 0x1b);
  __m128i abef = _mm_alignr_epi8(low, high, 8);
  __m128i cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; blocks; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i words = w[i % 4];
      __m128i sum = _mm_add_epi32(
          words, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRound + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      if (i < 12) {  // words of four rounds, sixteen rounds later
        __m128i next = _mm_sha256msg1_epu32(words, w[(i + 1) % 4]);
        next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
        w[i % 4] = _mm_sha256msg2_epu32(next, w[(i + 3) % 4]);
      }
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  low = _mm_shuffle_epi32(abef, 0x1b);
  high = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(low, high, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(high, low, 8));
}

bool HasSha() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) &&
         __builtin_cpu_supports("sse4.1");
}
#endif

void Add(uint32_t* state, const unsigned char* data, size_t blocks) {
#if defined(__x86_64__)
  static const bool has_sha = HasSha();
  if (has_sha) return AddBlocksSha(state, data, blocks);
#endif
  AddBlocks(state, data, blocks);
}

}  // namespace

void Sha256::Update(const void* data, size_t nbytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  total_ += nbytes;
  if (pending_bytes_) {
    const size_t taken = std::min(nbytes, sizeof pending_ - pending_bytes_);
    std::memcpy(pending_ + pending_bytes_, bytes, taken);
    pending_bytes_ += taken;
    bytes += taken;
    nbytes -= taken;
    if (pending_bytes_ < sizeof pending_) return;
    Add(state_.data(), pending_, 1);
    pending_bytes_ = 0;
  }
  Add(state_.data(), bytes, nbytes / 64);
  pending_bytes_ = nbytes % 64;
  if (pending_bytes_) std::memcpy(pending_, bytes + nbytes - pending_bytes_, pending_bytes_);
}

std::string Sha256::Finish() {
  const uint64_t bits = __builtin_bswap64(8 * total_);
  const size_t padding = (pending_bytes_ < 56 ? 56 : 120) - pending_bytes_;
  const unsigned char zeros[64] = {};
  const unsigned char one = 0x80;
  Update(&one, 1);
  Update(zeros, padding - 1);
  Update(&bits, 8);
  std::string digest;
  for (uint32_t word : state_) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", word);
    digest += text;
  }
  return digest;
}

}  // namespace tvm_edge
