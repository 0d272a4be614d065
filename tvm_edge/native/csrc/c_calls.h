// Shared by functions of the C API: statuses for exceptions, handles for objects.
#pragma once

#include <tvm_edge/tvm_edge.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "error.h"
#include "handles.h"
#include "model.h"

namespace tvm_edge {

/*! \brief The failure of this thread's last call that had one. */
struct Failure {
  tvm_edge_status status = TVM_EDGE_OK;
  std::string message;
  Details details;
};
const Failure& LastFailure();

Handles<Model>& LoadedModels();

tvm_edge_status Fail(tvm_edge_status status, std::string message, Details details = {}) noexcept;
tvm_edge_status FailWith(const ffi::Error& error) noexcept;
/*! \brief A handle that was never given out, or that was given back. */
tvm_edge_status RefuseHandle(const char* what) noexcept;

/*! \brief Call something, and keep what it throws for this thread. */
template <typename Function>
tvm_edge_status Guarded(const Function& function) noexcept try {
  function();
  return TVM_EDGE_OK;
} catch (const ffi::Error& error) {
  return FailWith(error);
} catch (const std::bad_alloc&) {
  return Fail(TVM_EDGE_OUT_OF_MEMORY, "there is not enough memory");
} catch (const std::exception& error) {
  return Fail(TVM_EDGE_INTERNAL_ERROR, error.what());
} catch (...) {
  return Fail(TVM_EDGE_INTERNAL_ERROR, "something was thrown that is no exception");
}

/*! \brief Call something with the object of a handle. */
template <typename Object, typename Function>
tvm_edge_status WithHandle(const Handles<Object>& handles, const void* handle, const char* what,
                           const Function& function) noexcept {
  const std::shared_ptr<Object> object = handles.Find(handle);
  if (object == nullptr) return RefuseHandle(what);
  return Guarded([&] { function(object); });
}

template <typename Function>
tvm_edge_status WithModel(tvm_edge_model* handle, const Function& function) noexcept {
  return WithHandle(LoadedModels(), handle, "model", function);
}

/*! \throws ffi::Error An InputError: a null pointer. */
void RequireArgument(const void* argument, const char* name);

/*! \brief A struct as this library knows it, of a caller that may know fewer or more fields. */
template <typename Struct>
Struct Versioned(const Struct* given, const char* name) {
  Struct made{};
  if (given == nullptr) return made;
  if (given->struct_size < sizeof(size_t) || given->struct_size > 1 << 16) {
    ThrowInput(std::string(name) + ".struct_size is " + std::to_string(given->struct_size) +
                   "; set it to sizeof the struct",
               {name, std::to_string(sizeof(Struct)), std::to_string(given->struct_size)});
  }
  std::memcpy(&made, given, std::min(sizeof(Struct), given->struct_size));
  return made;
}

}  // namespace tvm_edge
