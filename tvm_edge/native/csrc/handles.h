// Handles of the C API: whoever passes one that was freed is refused.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace tvm_edge {

/*! \brief Objects by the addresses that were given out. One that is taken away lives on in use. */
template <typename Object>
class Handles {
 public:
  Object* Add(std::shared_ptr<Object> object) {
    std::unique_lock<std::shared_mutex> lock(lock_);
    Object* handle = object.get();
    objects_[handle] = std::move(object);
    return handle;
  }
  /*! \brief The object of a handle; null if there is none. */
  std::shared_ptr<Object> Find(const void* handle) const {
    std::shared_lock<std::shared_mutex> lock(lock_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> Take(const void* handle) {
    std::unique_lock<std::shared_mutex> lock(lock_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  mutable std::shared_mutex lock_;
  std::unordered_map<const void*, std::shared_ptr<Object>> objects_;
};

}  // namespace tvm_edge
