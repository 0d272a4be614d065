#include "private_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace tvm_edge::opencl {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWriting = ".writing-";
constexpr const char* kKey = "/.key";

/*! \brief A file descriptor that closes itself. */
class File {
 public:
  explicit File(int number) : number_(number) {}
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

uint64_t Rotated(uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

struct SipState {
  uint64_t v0, v1, v2, v3;

  void Rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = Rotated(v1, 13) ^ v0;
      v3 = Rotated(v3, 16) ^ v2;
      v0 = Rotated(v0, 32) + v3;
      v2 += v1;
      v1 = Rotated(v1, 17) ^ v2;
      v3 = Rotated(v3, 21) ^ v0;
      v2 = Rotated(v2, 32);
    }
  }
  void Add(uint64_t word) {
    v3 ^= word;
    Rounds(2);
    v0 ^= word;
  }
  uint64_t Sum() const { return v0 ^ v1 ^ v2 ^ v3; }
};

/*! \brief Eight bytes, or fewer, as a little-endian number. */
uint64_t Word(const char* bytes, size_t count) {
  uint64_t word = 0;
  for (size_t i = 0; i < count; ++i) {
    word |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return word;
}

bool WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool ReadRandom(DigestKey* key) {
  const File file(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  return file && ::read(file.number(), key->data(), sizeof(*key)) == sizeof(*key);
}

}  // namespace

Digest KeyedDigest(std::string_view bytes, const DigestKey& key) {
  SipState state{key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du ^ 0xee,
                 key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
  const size_t size = bytes.size();
  const size_t whole = size - size % 8;
  for (size_t i = 0; i < whole; i += 8) state.Add(Word(bytes.data() + i, 8));
  state.Add(static_cast<uint64_t>(size) << 56 | Word(bytes.data() + whole, size - whole));
  state.v2 ^= 0xee;
  state.Rounds(4);
  const uint64_t first = state.Sum();
  state.v1 ^= 0xdd;
  state.Rounds(4);
  const uint64_t second = state.Sum();
  Digest digest;
  for (size_t i = 0; i < 8; ++i) {
    digest[i] = static_cast<char>(first >> (8 * i));
    digest[8 + i] = static_cast<char>(second >> (8 * i));
  }
  return digest;
}

std::optional<std::string> ReadPrivate(const std::string& path, uint64_t max_bytes, bool* found,
                                       bool touch) {
  // Not to wait for a writer of a FIFO, and not to follow a link.
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  *found = file || errno != ENOENT;
  struct stat status{};
  if (!file || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || (status.st_mode & 022) != 0 || status.st_size < 0 ||
      static_cast<uint64_t>(status.st_size) > max_bytes) {
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  for (size_t place = 0; place < bytes.size();) {
    const ssize_t count = ::read(file.number(), &bytes[place], bytes.size() - place);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;  // cut meanwhile
    place += static_cast<size_t>(count);
  }
  if (touch) ::futimens(file.number(), nullptr);
  return bytes;
}

bool WritePrivate(const std::string& folder, const std::string& path, std::string_view bytes,
                  bool replace) {
  std::string temporary = folder + "/" + kWriting + "XXXXXX";
  const File file(::mkostemp(&temporary[0], O_CLOEXEC));  // 0600
  if (!file) return false;
  // Says that its writer lives; RemoveAbandoned may have been faster.
  bool written = ::flock(file.number(), LOCK_EX | LOCK_NB) == 0 && WriteAll(file.number(), bytes);
  if (replace) {
    written = written && ::rename(temporary.c_str(), path.c_str()) == 0;
    if (!written) ::unlink(temporary.c_str());
  } else {
    written = written && ::link(temporary.c_str(), path.c_str()) == 0;
    ::unlink(temporary.c_str());
  }
  return written;
}

std::optional<DigestKey> FolderKey(const std::string& folder, bool make) {
  const std::string path = folder + kKey;
  for (int attempt = 0; attempt < 2; ++attempt) {
    bool found = false;
    const std::optional<std::string> bytes = ReadPrivate(path, sizeof(DigestKey), &found);
    struct stat status{};
    // Whoever can read it can make digests.
    const bool secret = ::lstat(path.c_str(), &status) == 0 && (status.st_mode & 077) == 0;
    if (bytes && bytes->size() == sizeof(DigestKey) && secret) {
      DigestKey key;
      std::memcpy(key.data(), bytes->data(), sizeof(key));
      return key;
    }
    if (!make || attempt == 1) return std::nullopt;
    if (found && ::unlink(path.c_str()) != 0) return std::nullopt;
    DigestKey key;
    if (!ReadRandom(&key)) return std::nullopt;
    // Of processes that do this at once, one wins, and all read its key.
    WritePrivate(folder, path,
                 std::string_view(reinterpret_cast<const char*>(key.data()), sizeof(key)), false);
  }
  return std::nullopt;
}

void RemoveAbandoned(const std::string& folder) noexcept try {
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    if (item.path().filename().string().rfind(kWriting, 0) != 0) continue;
    const File file(::open(item.path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status{};
    if (!file || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != ::geteuid()) {
      continue;
    }
    if (::flock(file.number(), LOCK_EX | LOCK_NB) == 0) ::unlink(item.path().c_str());
  }
} catch (const std::exception&) {
  // Out of memory: the next start removes them.
}

}  // namespace tvm_edge::opencl
