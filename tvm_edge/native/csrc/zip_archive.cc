#include "zip_archive.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tvm_edge {
namespace {

constexpr size_t kEndBytes = 22;        // of the end record without its comment
constexpr size_t kMostComment = 65535;
constexpr size_t kLocatorBytes = 20;    // of ZIP64's locator, before the end record
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kEntryBytes = 46;
constexpr size_t kLocalBytes = 30;
constexpr uint64_t kMostDirectory = 1 << 20;  // of members that an artifact has

/*! \brief Little-endian numbers of a record. */
class Record {
 public:
  explicit Record(std::string bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  T At(size_t offset) const {
    T value = 0;
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) {
      throw Damage("a record of the archive is too short");
    }
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes_[offset + i]))
                              << (8 * i));
    }
    return value;
  }

  bool Begins(size_t offset, const char* signature) const {
    return offset <= bytes_.size() && bytes_.compare(offset, 4, signature, 4) == 0;
  }
  std::string Text(size_t offset, size_t nbytes) const {
    if (offset > bytes_.size() || nbytes > bytes_.size() - offset) {
      throw Damage("a record of the archive is too short");
    }
    return bytes_.substr(offset, nbytes);
  }
  size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

struct Directory {
  Span span;
  uint64_t entries;
};

Directory FindDirectory(const ByteSource& source) {
  const uint64_t size = source.size();
  const uint64_t searched = std::min<uint64_t>(size, kEndBytes + kMostComment);
  const Record tail(source.ReadAll({size - searched, searched}));
  size_t at = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1;
  do {
    if (at == 0) throw Damage("the file is no ZIP archive");
    --at;
  } while (!tail.Begins(at, "PK\5\6"));
  if (at + kEndBytes + tail.At<uint16_t>(at + 20) != tail.size()) {
    throw Damage("something follows the archive");
  }
  Directory found{{tail.At<uint32_t>(at + 16), tail.At<uint32_t>(at + 12)},
                  tail.At<uint16_t>(at + 10)};
  const uint64_t end = size - searched + at;
  if (end >= kLocatorBytes) {
    const Record locator(source.ReadAll({end - kLocatorBytes, kLocatorBytes}));
    if (locator.Begins(0, "PK\6\7")) {
      const Record record(source.ReadAll({locator.At<uint64_t>(8), kEnd64Bytes}));
      if (!record.Begins(0, "PK\6\6")) throw Damage("the archive's end record is missing");
      found = {{record.At<uint64_t>(48), record.At<uint64_t>(40)}, record.At<uint64_t>(32)};
    }
  }
  if (found.span.nbytes > kMostDirectory) throw Damage("the archive has too many members");
  return found;
}

/*! \brief Sizes and place of a member, which may be in the extra field of ZIP64. */
struct Entry {
  uint64_t stored, size, header;

  Entry(const Record& directory, size_t at, size_t extra, size_t extra_bytes)
      : stored(directory.At<uint32_t>(at + 20)),
        size(directory.At<uint32_t>(at + 24)),
        header(directory.At<uint32_t>(at + 42)) {
    const size_t end = extra + extra_bytes;
    while (extra + 4 <= end) {
      const uint16_t id = directory.At<uint16_t>(extra);
      const size_t nbytes = directory.At<uint16_t>(extra + 2);
      if (extra + 4 + nbytes > end) throw Damage("an extra field of the archive is too long");
      if (id == 1) Read64(directory, extra + 4, nbytes);
      extra += 4 + nbytes;
    }
  }

 private:
  void Read64(const Record& directory, size_t at, size_t nbytes) {
    for (uint64_t* field : {&size, &stored, &header}) {
      if (*field != 0xffffffff) continue;
      if (nbytes < 8) throw Damage("an extra field of the archive is too short");
      *field = directory.At<uint64_t>(at);
      at += 8;
      nbytes -= 8;
    }
  }
};

Span ContentOf(const ByteSource& source, const std::string& name, const Entry& entry) {
  const Record local(source.ReadAll({entry.header, kLocalBytes}));
  if (!local.Begins(0, "PK\3\4")) throw Damage("the header of " + name + " is missing");
  const uint64_t begin =
      entry.header + kLocalBytes + local.At<uint16_t>(26) + local.At<uint16_t>(28);
  if (begin > source.size() || entry.size > source.size() - begin) {
    throw Damage(name + " ends after the end of the file");
  }
  if (source.ReadAll({entry.header + kLocalBytes, local.At<uint16_t>(26)}) != name) {
    throw Damage("the header of " + name + " has another name");
  }
  return {begin, entry.size};
}

}  // namespace

uint32_t Crc32(std::string_view content) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
      made[i] = value;
    }
    return made;
  }();
  uint32_t checksum = ~0u;
  for (char c : content) {
    checksum = checksum >> 8 ^ table[(checksum ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~checksum;
}

std::map<std::string, Member> StoredMembers(const ByteSource& source) {
  const Directory found = FindDirectory(source);
  const Record directory(source.ReadAll(found.span));
  std::map<std::string, Member> members;
  size_t at = 0;
  for (uint64_t i = 0; i < found.entries; ++i) {
    if (!directory.Begins(at, "PK\1\2")) throw Damage("the archive's directory is damaged");
    const size_t name_bytes = directory.At<uint16_t>(at + 28);
    const size_t extra_bytes = directory.At<uint16_t>(at + 30);
    const std::string name = directory.Text(at + kEntryBytes, name_bytes);
    const Entry entry(directory, at, at + kEntryBytes + name_bytes, extra_bytes);
    if (directory.At<uint16_t>(at + 8) & 1) throw Damage(name + " is encrypted");
    if (directory.At<uint16_t>(at + 10) != 0 || entry.stored != entry.size) {
      throw Damage(name + " is compressed");
    }
    members[name] = {ContentOf(source, name, entry), directory.At<uint32_t>(at + 16)};
    at += kEntryBytes + name_bytes + extra_bytes + directory.At<uint16_t>(at + 32);
  }
  return members;
}

}  // namespace tvm_edge
