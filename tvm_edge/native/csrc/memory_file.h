// A file that lies in memory and in no folder, for code that the dynamic linker is to load.
#pragma once

#include <tvm/ffi/extra/module.h>

#include <cstddef>
#include <memory>
#include <string>

namespace tvm_edge {

class MemoryFile {
 public:
  /*! \throws ffi::Error The system makes no such file. */
  explicit MemoryFile(const char* name);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void Append(const void* data, size_t nbytes);
  std::string Content() const;
  size_t size() const { return size_; }

  /*!
   * \brief A name by which the file can be opened, and that no other file had.
   *
   * The dynamic linker knows libraries by their names: one that was loaded as /proc/self/fd/5 would
   * be found in place of the next file with that number.
   */
  std::string Path() const;

 private:
  int fd_;
  size_t size_ = 0;
};

/*!
 * \brief Load a shared library of a model; its kernels run on the worker pool.
 * \param what What it belongs to, for messages.
 * \throws ffi::Error An ArtifactError: it cannot be linked here.
 */
tvm::ffi::Module LoadLibrary(const std::string& what, const MemoryFile& file);

}  // namespace tvm_edge
