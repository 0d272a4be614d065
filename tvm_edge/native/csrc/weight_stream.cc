#include "weight_stream.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tvm_edge {
namespace {

thread_local WeightStream* running_stream = nullptr;

const void* AddressOf(const Tensor& tensor) { return tensor->data; }

/*! \brief A part, what follows, what is not wanted any more; and perhaps a result to wait for. */
template <Tensor (WeightStream::*Take)(const Tensor&, const Tensor&, const Tensor&)>
void TakePart(ffi::PackedArgs args, ffi::Any* result) {
  if (running_stream == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "a part of weights is taken outside of a session";
  }
  *result = (running_stream->*Take)(args[0].cast<ffi::Tensor>(), args[1].cast<ffi::Tensor>(),
                                    args[2].cast<ffi::Tensor>());
}

}  // namespace

WeightStream::WeightStream(const std::vector<Tensor>& weights, int parts, const Device* device,
                           size_t largest)
    : parts_(parts), device_(device), largest_(largest) {
  for (const Tensor& weight : weights) {
    auto file = MappedFileAt(AddressOf(weight));
    if (file == nullptr) continue;
    file_of_[AddressOf(weight)] = file;
    if (std::find(files_.begin(), files_.end(), file) == files_.end()) files_.push_back(file);
  }
  reads_late_ = !files_.empty() && device != nullptr && device->ReadsHostMemory();
}

WeightStream::~WeightStream() {
  for (const Window& window : windows_) window.Settle();
}

WeightStream::Running::Running(WeightStream* stream, bool on_gpu)
    : stream_(stream), on_gpu_(on_gpu && stream->device_ != nullptr) {
  stream->CheckFiles();
  if (stream->parts_ && on_gpu_) windows_ = std::unique_lock<std::mutex>(stream->uploading_);
  outside_ = std::exchange(running_stream, stream);
}

void WeightStream::Running::Finish() {
  if (stream_->reads_late_ && on_gpu_) stream_->device_->Sync();
}

WeightStream::Running::~Running() { running_stream = outside_; }

std::vector<int64_t> WeightStream::window_bytes() const {
  std::vector<int64_t> sizes;
  for (const Window& window : windows_) sizes.push_back(static_cast<int64_t>(window.nbytes));
  return sizes;
}

bool WeightStream::Window::Has(const Tensor& wanted) const {
  return filled != nullptr && part == AddressOf(wanted) && filled->Wait() == nullptr;
}

Tensor WeightStream::Window::AsPart(const Tensor& wanted) const {
  return ViewOf(buffer, ShapeOf(*wanted.operator->()), wanted->dtype);
}

MappedFile* WeightStream::FileOf(const Tensor& part) const {
  auto found = file_of_.find(AddressOf(part));
  return found == file_of_.end() ? nullptr : found->second.get();
}

Tensor WeightStream::NextPart(const Tensor& part, const Tensor& following, const Tensor& before) {
  const MappedFile* file = FileOf(part);
  if (file == nullptr) return part;
  file->Check();
  // A thread that wakes up takes a core from the kernels for a while.
  if (scarce_ || !file->IsInMemory(AddressOf(following), BytesOf(following))) {
    reader_.Submit([=] { Advance(file, following, before); });
  }
  return part;
}

void WeightStream::Advance(const MappedFile* file, const Tensor& following, const Tensor& before) {
  if (file->ReadAhead(AddressOf(following), BytesOf(following))) {
    // The system's own reading ahead may be before ours for some parts.
    scarce_ = parts_;
  }
  if (scarce_) {
    --scarce_;
    file->Drop(AddressOf(before), BytesOf(before));
  }
}

Tensor WeightStream::UploadPart(const Tensor& part, const Tensor& following,
                                const Tensor& before) {
  auto [lent, is_new] = lent_.try_emplace(AddressOf(part));
  if (is_new) lent->second = device_->Share(part);
  if (lent->second) {
    // As of a kernel of the CPU: the one that read `before` is done.
    device_->Sync();
    NextPart(part, following, before);
    return *lent->second;
  }
  MakeWindows(std::max(BytesOf(part), BytesOf(following)));
  if (windows_.size() == 1) return Copy(part, following);
  Window* window = &windows_[1 - current_];
  if (!window->Has(part)) {  // the first run, or one after a run that failed
    Begin(window, part);
    if (std::exception_ptr error = window->filled->Wait()) std::rethrow_exception(error);
  }
  current_ = 1 - current_;
  // After the kernel that read the other window, and before the one that reads this.
  Begin(&windows_[1 - current_], following);
  return window->AsPart(part);
}

void WeightStream::MakeWindows(size_t nbytes) {
  nbytes = std::max(nbytes, largest_);
  if (!windows_.empty() && windows_[0].nbytes >= nbytes) return;
  for (const Window& window : windows_) window.Settle();
  if (!windows_.empty()) {  // before there are others; the runtime keeps what is freed
    windows_.clear();
    device_->ReleaseMemory();
  }
  const size_t count = device_->HostWritesAtAnyTime() ? 2 : 1;
  for (size_t i = 0; i < count; ++i) {
    windows_.push_back({nbytes, EmptyBytes(nbytes, device_->handle()), nullptr, nullptr});
  }
}

Tensor WeightStream::Copy(const Tensor& part, const Tensor& following) {
  const Window& window = windows_[0];
  const MappedFile* file = FileOf(part);
  if (file) {
    file->Check();
    // Pages that arrive after they were dropped would stay.
    if (ahead_) ahead_->Settle();
    ahead_ = reader_.Submit(
        [=] { file->ReadAhead(AddressOf(following), BytesOf(following)); });
  }
  Tensor copy = window.AsPart(part);
  const auto pinned = device_->PinnedMemory();
  if (!pinned) {
    part.CopyTo(copy);
    if (file) device_->Sync();  // the copy may still be reading
  } else {
    if (!pinned_) pinned_ = std::make_unique<PinnedCopies>(device_, *pinned);
    pinned_->Copy(part, file, window.buffer);
  }
  if (file) file->Drop(AddressOf(part), BytesOf(part));  // what was read ahead is mapped
  return copy;
}

void WeightStream::Begin(Window* window, const Tensor& part) {
  // As soon as the device is done with what was enqueued up to now.
  static const auto start = ffi::Function::GetGlobalRequired("vm.builtin.tvm_edge.start_write");
  const ffi::Any started = start(window->buffer);
  window->Settle();
  window->part = AddressOf(part);
  window->filled = reader_.Submit([=] { FillMapped(started, part); });
}

void WeightStream::FillMapped(const ffi::Any& started, const Tensor& part) {
  static const auto finish = ffi::Function::GetGlobalRequired("vm.builtin.tvm_edge.finish_write");
  const auto shared = finish(started).cast<ffi::Tensor>();
  char* target = DataOf(*shared.GetDLTensorPtr());
  if (const MappedFile* file = FileOf(part)) {
    file->ReadInto(target, AddressOf(part), BytesOf(part));
  } else {
    std::memcpy(target, AddressOf(part), BytesOf(part));
  }
}

void RegisterWeightStream() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("vm.builtin.tvm_edge.next_part", TakePart<&WeightStream::NextPart>)
      .def_packed("vm.builtin.tvm_edge.upload_part", TakePart<&WeightStream::UploadPart>);
}

}  // namespace tvm_edge
