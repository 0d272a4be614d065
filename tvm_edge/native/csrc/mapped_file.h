// A file mapped read-only: the operating system drops its pages, and reads them again.
//
// What lies in such pages is in nobody's budget of memory: they are clean. Two things are left to
// whoever computes with them. A page that is not there is read when a kernel touches it, and the
// kernel waits; ReadAhead asks for pages beforehand. And what somebody writes to the file changes
// the pages, and a page after the end of a file that somebody has cut reads as zeros
// (opencl/csrc/page_guard.h); Check, before a run and after it, says so. A file that takes the place
// of this one in its folder changes nothing.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tvm_edge {

class MappedFile {
 public:
  /*!
   * \brief Map the whole of a file, which may be closed and removed afterwards.
   * \param since Status of the file before its content was checked.
   */
  static std::shared_ptr<MappedFile> Map(int fd, std::string name, const struct stat& since);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  const std::string& name() const { return name_; }

  /*!
   * \brief Refuse a file that was written since, is shorter, or was when its last pages were read.
   * \throws ffi::Error An ArtifactError.
   */
  void Check() const;

  /*!
   * \brief Whether the system has all of some bytes, and says so.
   *
   * For 64 MiB that are mapped into this process it costs 50 us, and 2 ms for others.
   */
  bool IsInMemory(const void* data, size_t nbytes) const;

  /*!
   * \brief Have pages read that are not in memory, and mapped.
   *
   * Returns when they are there; before Linux 5.14, which cannot say when, before they are. Asked
   * to read pages that way it reads them one by one, which is slower too (1.1 GB/s instead of 1.4
   * to 1.7).
   * \return Whether there are such pages. Where the system does not say, for a file that somebody
   * else owns, all are asked for, and none is said to be missing.
   */
  bool ReadAhead(const void* data, size_t nbytes) const;

  /*! \brief Copy bytes from the file, whatever is mapped. \throws ffi::Error An ArtifactError. */
  void ReadInto(void* into, const void* data, size_t nbytes) const;

  /*! \brief Take pages out of this process's memory that hold nothing else. */
  void Drop(const void* data, size_t nbytes) const;

 private:
  MappedFile(int fd, std::string name, const struct stat& since);
  struct Pages {
    size_t first, last;  // places in the file
  };
  Pages PagesOf(const void* data, size_t nbytes) const;
  std::vector<unsigned char> Residency(Pages pages) const;

  int fd_ = -1;
  std::string name_;
  char* data_ = nullptr;
  size_t nbytes_ = 0;
  void* guard_ = nullptr;
  struct timespec written_;
  size_t request_;  // bytes that the kernel reads at once from this disk
  bool tells_;      // of others' files the kernel says that all is in memory
};

/*! \brief The file that is mapped at an address, if one of ours is. */
std::shared_ptr<MappedFile> MappedFileAt(const void* address);

/*!
 * \brief Status of a file whose time of writing any later write changes.
 * \throws ffi::Error An ArtifactError: somebody goes on writing to it.
 */
struct stat SettledStatus(int fd, const std::string& name);

}  // namespace tvm_edge
