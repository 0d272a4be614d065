#include "shape_recordings.h"

#include <malloc.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <set>
#include <utility>

#include "error.h"
#include "text.h"

namespace tvm_edge {
namespace {

constexpr size_t kMost = 32;         // recordings kept, those that ran last
constexpr size_t kMostNoted = 1024;  // shapes remembered that are not recorded
constexpr int kAgain = 8;  // runs of a shape that was dropped for others before it is recorded again
constexpr int64_t kSpare = 4;  // memory is taken for tensors larger by one part in so many

struct Known {
  std::mutex lock;
  std::set<ShapeRecordings*> all;
};
Known& known() {
  static auto* known = new Known();
  return *known;
}

std::string TextOf(const Shapes& shapes) {
  std::vector<std::string> parts;
  for (const auto& shape : shapes) {
    parts.push_back(ShapeText(shape.data(), static_cast<int>(shape.size())));
  }
  return TupleText(parts);
}

}  // namespace

Shapes ShapesOf(const std::vector<Tensor>& tensors) {
  Shapes shapes;
  for (const Tensor& tensor : tensors) {
    shapes.emplace_back(tensor->shape, tensor->shape + tensor->ndim);
  }
  return shapes;
}

ShapeRecordings::ShapeRecordings(MakeMachine make, std::string function, DLDevice device)
    : make_(std::move(make)),
      function_(std::move(function)),
      device_(device),
      sizes_machine_(make_()),
      sizes_(sizes_machine_->Find(PartSizes(function_))) {
  std::lock_guard<std::mutex> lock(known().lock);
  known().all.insert(this);
}

ShapeRecordings::~ShapeRecordings() {
  std::lock_guard<std::mutex> lock(known().lock);
  known().all.erase(this);
}

std::vector<ffi::Any> ShapeRecordings::Run(const std::vector<Tensor>& inputs,
                                           const ffi::Any& weights, const Entry& plain) {
  std::lock_guard<std::mutex> lock(lock_);
  const Shapes shapes = ShapesOf(inputs);
  const std::optional<Entry>* recording = recordings_.Find(shapes);
  if (recording == nullptr && IsDue(shapes)) return Record(shapes, inputs, weights, plain);
  if (recording == nullptr || !*recording) {
    Arguments arguments(inputs.begin(), inputs.end());
    arguments.push_back(weights);
    return plain(arguments);
  }
  recordings_.MoveToEnd(shapes);
  return RunRecorded(**recording, inputs, weights);
}

std::vector<ffi::Any> ShapeRecordings::RunRecorded(const Entry& recorded,
                                                   const std::vector<Tensor>& inputs,
                                                   const ffi::Any& weights) const {
  Arguments arguments(inputs.begin(), inputs.end());
  arguments.insert(arguments.end(), parts_.begin(), parts_.end());
  arguments.push_back(weights);
  return recorded(arguments);
}

std::vector<Shapes> ShapeRecordings::recorded() {
  std::lock_guard<std::mutex> lock(lock_);
  std::vector<Shapes> found;
  for (const auto& [shapes, entry] : recordings_.items()) {
    if (entry) found.push_back(shapes);
  }
  return found;
}

bool ShapeRecordings::Clear() {
  const bool had = !parts_.empty() || recordings_.size() > 0;
  for (const auto& [shapes, entry] : recordings_.items()) Wait(shapes, 0);
  recordings_.Clear();
  parts_.clear();
  return had;
}

bool ShapeRecordings::IsDue(const Shapes& shapes) {
  const int* noted = waits_.Find(shapes);
  const int waits = noted ? *noted : 1;
  waits_.Erase(shapes);
  if (!waits) return true;
  // Without elements there is nothing to record.
  const bool has_elements = std::all_of(shapes.begin(), shapes.end(), [](const auto& shape) {
    return std::all_of(shape.begin(), shape.end(), [](int64_t length) { return length != 0; });
  });
  if (has_elements) Wait(shapes, waits - 1);
  return false;
}

void ShapeRecordings::Wait(const Shapes& shapes, int runs) {
  waits_.Set(shapes, runs);
  if (waits_.size() > kMostNoted) waits_.PopFirst();
}

std::vector<ffi::Any> ShapeRecordings::Record(const Shapes& shapes,
                                              const std::vector<Tensor>& inputs,
                                              const ffi::Any& weights, const Entry& plain) {
  while (recordings_.size() >= kMost) Wait(recordings_.PopFirst(), kAgain);
  std::optional<Entry> recording;
  std::vector<ffi::Any> results;
  try {
    Reserve(inputs);
    Entry recorded(make_(), ByShape(function_));
    results = RunRecorded(recorded, inputs, weights);
    recording = std::move(recorded);
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    // What plain launches complain of as well was no failure of the recording.
    Clear();
    Arguments arguments(inputs.begin(), inputs.end());
    arguments.push_back(weights);
    results = plain(arguments);
    Log("info", "runs of the shapes " + TextOf(shapes) + " are not recorded: " + OneLine(reason));
  }
  recordings_.Set(shapes, std::move(recording));
  return results;
}

void ShapeRecordings::Reserve(const std::vector<Tensor>& inputs) {
  const Arguments arguments(inputs.begin(), inputs.end());
  ffi::Any found;
  sizes_.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &found);
  const auto sizes = found.cast<ffi::Shape>();
  std::vector<int64_t> had(sizes.size(), 0);
  for (size_t i = 0; i < parts_.size(); ++i) had[i] = parts_[i]->shape[0];
  bool fits = !parts_.empty();
  for (size_t i = 0; i < sizes.size(); ++i) fits = fits && had[i] >= sizes[i];
  if (fits) return;
  Clear();  // where one is too small, all recordings go
  const auto make = [&](bool spare) {
    std::vector<Tensor> parts;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t larger = had[i] >= sizes[i] ? had[i] : sizes[i] + sizes[i] / kSpare;
      parts.push_back(EmptyBytes(static_cast<size_t>(spare ? larger : sizes[i]), device_));
    }
    return parts;
  };
  try {
    parts_ = make(true);
  } catch (const std::exception&) {
    parts_ = make(false);
  }
}

bool ShapeRecordings::DropAll() {
  bool dropped = false;
  std::lock_guard<std::mutex> lock(known().lock);
  for (ShapeRecordings* recordings : known().all) {
    std::unique_lock<std::mutex> own(recordings->lock_, std::try_to_lock);
    if (own) dropped |= recordings->Clear();
  }
  return dropped;
}

void ClearPools() {
  static const auto clear = ffi::Function::GetGlobalRequired("vm.builtin.memory_manager.clear");
  static const auto release = ffi::Function::GetGlobalRequired("tvm_edge.release_arenas");
  clear();
  release();
}

bool SaysOutOfMemory(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const ffi::Error& raised) {
    return raised.kind() == kMemoryError || IsOutOfMemory(raised.message());
  } catch (...) {
    return false;
  }
}

void SeenShapes::Note(const std::vector<Tensor>& inputs) {
  std::lock_guard<std::mutex> lock(lock_);
  const Shapes shapes = ShapesOf(inputs);
  shapes_[shapes] = true;
  if (shapes_.size() <= most_) return;
  shapes_.clear();
  shapes_[shapes] = true;
  static const auto clear = ffi::Function::GetGlobalRequired("vm.builtin.memory_manager.clear");
  clear();
#ifdef __GLIBC__
  // The C library keeps pages between blocks that are in use: shape after shape they would grow.
  malloc_trim(0);
#endif
}

}  // namespace tvm_edge
