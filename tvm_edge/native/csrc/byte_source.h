// Bytes of an artifact: a file's, which are read, or memory's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tvm_edge {

/*! \brief What an artifact that was copied, cut or never whole is refused with. */
class Damage : public std::exception {
 public:
  explicit Damage(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

/*! \brief A range of bytes. */
struct Span {
  uint64_t begin = 0;
  uint64_t nbytes = 0;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /*! \throws Damage There are fewer. */
  virtual void Read(void* into, uint64_t begin, size_t nbytes) const = 0;
  uint64_t size() const { return size_; }

  /*! \brief Hand out a range piece by piece, as it is read. */
  void ForEachChunk(Span span, const std::function<void(const char*, size_t)>& use) const;

  std::string ReadAll(Span span) const;

 protected:
  explicit ByteSource(uint64_t size) : size_(size) {}

 private:
  uint64_t size_;
};

/*! \brief An open file, which stays the caller's. It is read: mapped pages would stay in memory. */
class FileSource : public ByteSource {
 public:
  FileSource(int fd, uint64_t size) : ByteSource(size), fd_(fd) {}
  void Read(void* into, uint64_t begin, size_t nbytes) const override;

 private:
  int fd_;
};

class MemorySource : public ByteSource {
 public:
  MemorySource(const void* data, uint64_t size)
      : ByteSource(size), data_(static_cast<const char*>(data)) {}
  void Read(void* into, uint64_t begin, size_t nbytes) const override;

 private:
  const char* data_;
};

}  // namespace tvm_edge
