#include "memory_file.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "byte_source.h"
#include "error.h"
#include "parallel_launch.h"
#include "text.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x10U  // of Linux 6.3: a system may forbid code in files that did not ask for it
#endif

namespace tvm_edge {
namespace {

/*!
 * \brief Let code of artifacts find TVM FFI's functions in any program.
 *
 * One that opens this library for itself alone (a plugin, Python's ctypes, JNI) does so with all that
 * it needs. A kernel that refuses an argument would then end the process: code is bound lazily.
 */
void ShowFfiToCode() {
  static const bool shown = [] {
    Dl_info ffi;
    return dladdr(reinterpret_cast<void*>(&TVMFFIErrorSetRaisedFromCStrParts), &ffi) &&
           dlopen(ffi.dli_fname, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
  }();
  if (!shown) ThrowArtifact("TVM FFI's library is not found again; install tvm-edge anew");
}

}  // namespace

MemoryFile::MemoryFile(const char* name) {
  fd_ = memfd_create(name, MFD_CLOEXEC | MFD_EXEC);
  if (fd_ < 0 && errno == EINVAL) fd_ = memfd_create(name, MFD_CLOEXEC);
  if (fd_ < 0) {
    ThrowArtifact("the system makes no file in memory for code (memfd_create: " +
                  std::string(std::strerror(errno)) +
                  "); it takes Linux 3.17 or newer, and free file descriptors");
  }
}

MemoryFile::~MemoryFile() { close(fd_); }

void MemoryFile::Append(const void* data, size_t nbytes) {
  const auto* bytes = static_cast<const char*>(data);
  while (nbytes) {
    const ssize_t count = write(fd_, bytes, nbytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ThrowArtifact("cannot keep the artifact's code in a file in memory: " +
                    std::string(std::strerror(errno)) +
                    "; free some memory, or raise the limit of file sizes (ulimit -f)");
    }
    bytes += count;
    nbytes -= static_cast<size_t>(count);
    size_ += static_cast<size_t>(count);
  }
}

std::string MemoryFile::Content() const {
  return FileSource(fd_, size_).ReadAll({0, size_});
}

std::string MemoryFile::Path() const {
  static std::atomic<uint64_t> made{0};
  std::string path = "/proc/self/fd/";
  // The number of the file, in twos: "./" and "/" lead nowhere.
  for (uint64_t number = made.fetch_add(1); number; number >>= 1) path += number & 1 ? "./" : "/";
  return path + std::to_string(fd_);
}

ffi::Module LoadLibrary(const std::string& what, const MemoryFile& file) {
  static const ffi::Function load = ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so");
  ShowFfiToCode();
  try {
    const std::string path = file.Path();
    const auto module = load(path, "so").cast<ffi::Module>();
    UsePoolIn(path);
    return module;
  } catch (const ffi::Error& error) {
    std::string reason = error.message().substr(0, error.message().find('\n'));
    ThrowArtifact("the dynamic linker refuses the library of " + what + ": " +
                  OneLine(reason, 200) + "; export the model again");
  }
}

}  // namespace tvm_edge
