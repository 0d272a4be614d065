#include "byte_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace tvm_edge {
namespace {
constexpr size_t kChunk = 256 << 10;
}

void ByteSource::ForEachChunk(Span span,
                              const std::function<void(const char*, size_t)>& use) const {
  const std::unique_ptr<char[]> chunk(new char[std::min<uint64_t>(kChunk, span.nbytes + 1)]);
  for (uint64_t done = 0; done < span.nbytes;) {
    const size_t nbytes = std::min<uint64_t>(kChunk, span.nbytes - done);
    Read(chunk.get(), span.begin + done, nbytes);
    use(chunk.get(), nbytes);
    done += nbytes;
  }
}

std::string ByteSource::ReadAll(Span span) const {
  if (span.begin > size() || span.nbytes > size() - span.begin) {
    throw Damage("it ends within a member");
  }
  std::string made(span.nbytes, '\0');
  Read(made.data(), span.begin, made.size());
  return made;
}

void FileSource::Read(void* into, uint64_t begin, size_t nbytes) const {
  for (size_t done = 0; done < nbytes;) {
    const ssize_t count =
        pread(fd_, static_cast<char*>(into) + done, nbytes - done, static_cast<off_t>(begin + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category());
    if (count == 0) throw Damage("the file has become shorter");
    done += static_cast<size_t>(count);
  }
}

void MemorySource::Read(void* into, uint64_t begin, size_t nbytes) const {
  if (begin > size() || nbytes > size() - begin) throw Damage("it ends within a member");
  std::memcpy(into, data_ + begin, nbytes);
}

}  // namespace tvm_edge
