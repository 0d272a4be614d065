#include "program_store.h"

#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "error.h"

namespace tvm_edge::opencl {
namespace fs = std::filesystem;
namespace {

// An entry: this mark, a checksum of all that follows, two lengths, the key, the binary. On disk it
// follows a keyed digest of it: whoever may write into the folder cannot make one.
constexpr char kMark[8] = {'T', 'E', 'O', 'C', 'L', '0', '0', '1'};
constexpr const char* kSuffix = ".clbin";
constexpr int64_t kDefaultMegabytes = 256;
constexpr int64_t kMostMegabytes = int64_t{1} << 30;  // in bytes still a number

/*! \brief FNV-1a. Finds damage in what an artifact brings, which is as trusted as its code. */
uint64_t Hash(const char* data, size_t size, uint64_t seed = 0xcbf29ce484222325u) {
  for (size_t i = 0; i < size; ++i) {
    seed = (seed ^ static_cast<unsigned char>(data[i])) * 0x100000001b3u;
  }
  return seed;
}

struct Header {
  char mark[8];
  uint64_t checksum, key_bytes, binary_bytes;
};

/*! \brief One entry out of bytes that may hold several, or damage. */
struct Parsed {
  std::string_view key, binary;  // in those bytes
  size_t size;                   // of the entry
};

std::optional<Parsed> Parse(std::string_view bytes, size_t begin) {
  Header header;
  if (begin > bytes.size() || bytes.size() - begin < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data() + begin, sizeof(header));
  const size_t rest = bytes.size() - begin - sizeof(header);
  if (std::memcmp(header.mark, kMark, sizeof(kMark)) != 0 || header.key_bytes > rest ||
      header.binary_bytes > rest - header.key_bytes) {
    return std::nullopt;
  }
  const size_t size = sizeof(header) + header.key_bytes + header.binary_bytes;
  const size_t checked = offsetof(Header, key_bytes);
  if (Hash(bytes.data() + begin + checked, size - checked) != header.checksum) return std::nullopt;
  const size_t key = begin + sizeof(header);
  return Parsed{bytes.substr(key, header.key_bytes),
                bytes.substr(key + header.key_bytes, header.binary_bytes), size};
}

std::string DefaultFolder() {
  const char* chosen = std::getenv("TVM_EDGE_OPENCL_CACHE");
  if (chosen != nullptr && chosen[0] != '\0') return std::strcmp(chosen, "0") == 0 ? "" : chosen;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/tvm-edge/opencl";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/tvm-edge/opencl";
  return "";
}

}  // namespace

ProgramStore& ProgramStore::Global() {
  static auto* store = new ProgramStore();
  return *store;
}

ProgramStore::ProgramStore() : folder_(DefaultFolder()) {
  const int64_t asked = CountVariable("TVM_EDGE_OPENCL_CACHE_SIZE", kDefaultMegabytes);
  max_bytes_ = std::min(asked, kMostMegabytes) << 20;
}

std::string ProgramStore::Entry(const std::string& key, const std::string& binary) {
  Header header;
  std::memcpy(header.mark, kMark, sizeof(kMark));
  header.key_bytes = key.size();
  header.binary_bytes = binary.size();
  std::string entry(sizeof(header), '\0');
  std::memcpy(&entry[0], &header, sizeof(header));
  entry += key;
  entry += binary;
  const size_t checked = offsetof(Header, key_bytes);
  header.checksum = Hash(entry.data() + checked, entry.size() - checked);
  std::memcpy(&entry[offsetof(Header, checksum)], &header.checksum, sizeof(header.checksum));
  return entry;
}

std::optional<DigestKey> ProgramStore::Secret(bool make) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!secret_) {
    if (!cleaned_) RemoveAbandoned(folder_);
    cleaned_ = true;
    secret_ = FolderKey(folder_, make);
  }
  return secret_;
}

std::string ProgramStore::Path(const std::string& key, const DigestKey& secret) const {
  std::string path = folder_ + "/";
  for (const char byte : KeyedDigest(key, secret)) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    path += digits;
  }
  return path + kSuffix;
}

cl_program ProgramStore::Use(const std::string& key, const Load& load) {
  std::string binary;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Taken out: drivers keep a copy of their own, and whoever loads the artifact again adds it again.
    auto found = from_artifacts_.find(key);
    if (found != from_artifacts_.end()) {
      binary = std::move(found->second);
      from_artifacts_.erase(found);
    }
  }
  if (!binary.empty()) {
    if (cl_program program = load(binary)) {
      std::lock_guard<std::mutex> lock(mutex_);
      ++stats_.from_artifact;
      return program;
    }
  }
  if (!keeps()) return nullptr;
  std::string path;
  bool used = false;
  std::optional<std::string> stored = Stored(key, &path, &used);
  if (stored) {
    if (cl_program program = load(*stored)) {
      std::lock_guard<std::mutex> lock(mutex_);
      ++stats_.from_disk;
      return program;
    }
  }
  if (!used) return nullptr;
  ::unlink(path.c_str());
  std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.damaged;
  return nullptr;
}

std::optional<std::string> ProgramStore::Stored(const std::string& key, std::string* path,
                                                bool* found) noexcept try {
  const std::optional<DigestKey> secret = Secret(false);
  if (!secret) return std::nullopt;
  *path = Path(key, *secret);
  // Read now, used now: Trim takes the oldest.
  const std::optional<std::string> bytes =
      ReadPrivate(*path, static_cast<uint64_t>(max_bytes_), found, true);
  if (!bytes || bytes->size() < sizeof(Digest)) return std::nullopt;
  const std::string_view content = std::string_view(*bytes).substr(sizeof(Digest));
  const Digest digest = KeyedDigest(content, *secret);
  if (std::memcmp(digest.data(), bytes->data(), sizeof(digest)) != 0) return std::nullopt;
  const std::optional<Parsed> entry = Parse(content, 0);
  if (!entry || entry->size != content.size() || entry->key != key) return std::nullopt;
  return std::string(entry->binary);
} catch (const std::exception&) {
  *found = false;
  return std::nullopt;  // out of memory: the program is built, and that may say so
}

void ProgramStore::Put(const std::string& key, const std::string& binary) noexcept try {
  if (!keeps() || binary.empty()) return;
  const std::string entry = Entry(key, binary);
  if (static_cast<int64_t>(entry.size() + sizeof(Digest)) > max_bytes_) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  const std::optional<DigestKey> secret = Secret(true);
  if (!secret) return;
  const Digest digest = KeyedDigest(entry, *secret);
  const std::string content = std::string(digest.data(), digest.size()) + entry;
  if (!WritePrivate(folder_, Path(key, *secret), content)) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++stats_.stored;
  }
  Trim();
} catch (const std::exception&) {
  // Out of memory while caching: the program is built and runs, which is what was asked for.
}

void ProgramStore::Trim() noexcept try {
  struct Entry {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder_, error)) {
    std::error_code gone;  // another process may trim, too
    const auto used = item.last_write_time(gone);
    const auto bytes = static_cast<int64_t>(item.file_size(gone));
    if (gone) continue;
    if (item.path().extension() != kSuffix) continue;
    entries.push_back({used, bytes, item.path()});
    total += bytes;
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= max_bytes_) break;
    if (fs::remove(entry.path, error)) total -= entry.bytes;
  }
} catch (const std::exception&) {
  // As in Put: a cache that stays too large for now is no failure.
}

void ProgramStore::CountBuild() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.built;
}

void ProgramStore::AddPack(std::string_view pack) {
  std::vector<Parsed> entries;
  for (size_t begin = 0; begin < pack.size();) {
    std::optional<Parsed> entry = Parse(pack, begin);
    if (!entry) {
      TVM_FFI_THROW(ValueError) << "The OpenCL programs given are damaged at byte " << begin
                                << " of " << pack.size();
    }
    begin += entry->size;
    entries.push_back(*entry);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Parsed& entry : entries) from_artifacts_[std::string(entry.key)] = entry.binary;
}

ProgramStore::Stats ProgramStore::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  Stats stats = stats_;
  stats.waiting = static_cast<int64_t>(from_artifacts_.size());
  return stats;
}

}  // namespace tvm_edge::opencl
