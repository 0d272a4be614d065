// Launches of a model with open dimensions, recorded for each of the shapes that it runs often.
//
// A shape is recorded when it is run for the second time: recording costs several runs, and most
// shapes of some models come only once. Every recording has a virtual machine of its own, so that
// dropping the machine drops all that the driver and TVM keep for it. They take turns, so all of
// them are in the same memory, as large as the largest needs it.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "entry.h"

namespace tvm_edge {

using Shapes = std::vector<std::vector<int64_t>>;
Shapes ShapesOf(const std::vector<Tensor>& tensors);

/*! \brief A map that remembers in which order its keys came. */
template <typename Value>
class OrderedMap {
 public:
  Value* Find(const Shapes& key) {
    auto found = places_.find(key);
    return found == places_.end() ? nullptr : &found->second->second;
  }
  void Set(const Shapes& key, Value value) {
    Erase(key);
    items_.emplace_back(key, std::move(value));
    places_[key] = std::prev(items_.end());
  }
  void MoveToEnd(const Shapes& key) { items_.splice(items_.end(), items_, places_.at(key)); }
  void Erase(const Shapes& key) {
    auto found = places_.find(key);
    if (found == places_.end()) return;
    items_.erase(found->second);
    places_.erase(found);
  }
  /*! \brief Drop the first; its key. */
  Shapes PopFirst() {
    const Shapes key = items_.front().first;
    Erase(key);
    return key;
  }
  void Clear() {
    places_.clear();
    items_.clear();
  }
  size_t size() const { return items_.size(); }
  const std::list<std::pair<Shapes, Value>>& items() const { return items_; }

 private:
  std::list<std::pair<Shapes, Value>> items_;
  std::map<Shapes, typename std::list<std::pair<Shapes, Value>>::iterator> places_;
};

/*! \brief The recordings of one entry on one machine, for one run at a time. */
class ShapeRecordings {
 public:
  using MakeMachine = std::function<std::shared_ptr<VirtualMachine>()>;

  /*!
   * \param make Makes a virtual machine.
   * \param function The entry's name.
   * \param device Where the memory of recordings is.
   */
  ShapeRecordings(MakeMachine make, std::string function, DLDevice device);
  ~ShapeRecordings();
  ShapeRecordings(const ShapeRecordings&) = delete;
  ShapeRecordings& operator=(const ShapeRecordings&) = delete;

  /*! \brief Run the entry, which `plain` launches kernel by kernel. */
  std::vector<ffi::Any> Run(const std::vector<Tensor>& inputs, const ffi::Any& weights,
                            const Entry& plain);

  /*! \brief Shapes whose runs replay a recording. */
  std::vector<Shapes> recorded();

  /*! \brief Drop all recordings of all models that do not run; whether there were any. */
  static bool DropAll();

 private:
  bool Clear();
  bool IsDue(const Shapes& shapes);
  void Wait(const Shapes& shapes, int runs);
  std::vector<ffi::Any> Record(const Shapes& shapes, const std::vector<Tensor>& inputs,
                               const ffi::Any& weights, const Entry& plain);
  std::vector<ffi::Any> RunRecorded(const Entry& recorded, const std::vector<Tensor>& inputs,
                                    const ffi::Any& weights) const;
  void Reserve(const std::vector<Tensor>& inputs);

  const MakeMachine make_;
  const std::string function_;
  const DLDevice device_;
  std::shared_ptr<VirtualMachine> sizes_machine_;
  ffi::Function sizes_;
  OrderedMap<std::optional<Entry>> recordings_;  // nothing: the driver would not record it
  OrderedMap<int> waits_;
  std::vector<Tensor> parts_;
  std::mutex lock_;
};

/*! \brief Give all memory back that no run holds: free blocks of all pools, and arenas. */
void ClearPools();

/*!
 * \brief Run something, a second time without recordings where a device has no memory left.
 *
 * Those of all models that do not run just now are dropped.
 */
template <typename Run>
auto MakingWay(const Run& run);

/*! \brief Shapes of inputs that the pool may have blocks of. */
class SeenShapes {
 public:
  /*! \param most Shapes whose blocks are kept. */
  explicit SeenShapes(size_t most) : most_(most) {}
  /*! \brief Note the shapes of a run; give all free blocks back before there are too many. */
  void Note(const std::vector<Tensor>& inputs);

 private:
  const size_t most_;
  std::mutex lock_;
  std::map<Shapes, bool> shapes_;
};

// -------------------------------------------------------------------------- implementation

bool SaysOutOfMemory(std::exception_ptr error);

template <typename Run>
auto MakingWay(const Run& run) {
  try {
    return run();
  } catch (...) {
    if (!SaysOutOfMemory(std::current_exception()) || !ShapeRecordings::DropAll()) throw;
  }
  ClearPools();
  return run();
}

}  // namespace tvm_edge
