// SHA-256 (FIPS 180-4), by the processor's instructions where it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tvm_edge {

class Sha256 {
 public:
  void Update(const void* data, size_t nbytes);
  /*! \brief The digest in hexadecimal; nothing is added afterwards. */
  std::string Finish();

 private:
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char pending_[64];
  size_t pending_bytes_ = 0;
  uint64_t total_ = 0;
};

}  // namespace tvm_edge
