#include "library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace tvm_edge::opencl {
namespace {

// The ICD loader first; then where Android and board vendors put the driver itself.
constexpr const char* kCandidates[] = {
    "libOpenCL.so.1",
    "libOpenCL.so",
    "/usr/local/lib/libOpenCL.so",
    "/vendor/lib64/libOpenCL.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/system/lib64/libOpenCL.so",
    "/system_ext/lib64/libOpenCL_system.so",
    "/vendor/lib64/egl/libGLES_mali.so",
    "/system/vendor/lib64/egl/libGLES_mali.so",
    "/system/lib64/egl/libGLES_mali.so",
    "/vendor/lib64/libPVROCL.so",
    "/system/vendor/lib64/libPVROCL.so",
    "libmali.so.1",
    "libmali.so",
    "libpocl.so.2",
    "/data/data/org.pocl.libs/files/lib/libpocl.so",
};

/*! \brief Open one file; what is wrong with it goes to `library->error`. */
bool Open(const char* path, Library* library) {
  void* handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    library->error = reason == nullptr ? std::string(path) + " does not load" : reason;
    return false;
  }
  std::string missing;
#define TVM_EDGE_LOAD(name, result, parameters)                                                    \
  library->name = reinterpret_cast<result(*) parameters>(dlsym(handle, #name));                    \
  if (library->name == nullptr) missing = #name;
  TVM_EDGE_OPENCL_OPTIONAL(TVM_EDGE_LOAD)
  missing.clear();  // those may be absent
  TVM_EDGE_OPENCL_CORE(TVM_EDGE_LOAD)
#undef TVM_EDGE_LOAD
  if (!missing.empty()) {
    library->error = std::string(path) + " is no OpenCL 1.2 library: it lacks " + missing;
    dlclose(handle);
    return false;
  }
  library->path = path;
  library->error.clear();
  return true;
}

Library* Load() {
  auto* library = new Library();  // never freed: kernels may be released while the process ends
  const char* chosen = std::getenv("TVM_EDGE_OPENCL_LIBRARY");
  if (chosen != nullptr && chosen[0] != '\0') {
    if (!Open(chosen, library)) library->error = "TVM_EDGE_OPENCL_LIBRARY: " + library->error;
    return library;
  }
  std::string reason;
  for (const char* candidate : kCandidates) {
    if (Open(candidate, library)) return library;
    // The loader's own complaint is the telling one; the others are mostly absent files.
    if (reason.empty()) reason = library->error;
  }
  library->error = "no OpenCL library found (" + reason + ")";
  return library;
}

}  // namespace

const Library& cl() {
  static const Library* library = Load();
  return *library;
}

}  // namespace tvm_edge::opencl
