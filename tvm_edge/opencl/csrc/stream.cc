#include "stream.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>

#include "device.h"
#include "error.h"
#include "library.h"

namespace tvm_edge::opencl {
namespace {

// A driver starts queued work when it is flushed; some wait for it for ever.
constexpr size_t kFlushInterval = 32;
// Recorded commands whose events are kept before their times are read.
constexpr size_t kMaxUnread = 4096;

Event Own(cl_event event) {
  return Event(event, [](cl_event held) { cl().clReleaseEvent(held); });
}

cl_ulong EventTime(const Event& event, cl_info which, Device* device) {
  cl_ulong time = 0;
  Check(cl().clGetEventProfilingInfo(event.get(), which, sizeof(time), &time, nullptr), device,
        "reading the time of a command");
  return time;
}

}  // namespace

Stream::Stream(Device* device) : device_(device) { ChooseQueue(); }

Stream::~Stream() {
  if (Forked()) return;
  cl().clFinish(queue_);
  for (cl_command_queue queue : queues_) {
    if (queue != nullptr) cl().clReleaseCommandQueue(queue);
  }
}

void Stream::ChooseQueue() {
  const bool profiling = recording_ || timing_ > 0;
  cl_command_queue& wanted = queues_[profiling ? 1 : 0];
  if (wanted != nullptr && wanted == queue_) return;
  if (queue_ != nullptr) FinishLocked();
  if (wanted == nullptr) {
    const cl_bitfield flags = profiling ? CL_QUEUE_PROFILING_ENABLE : 0;
    cl_int status = CL_SUCCESS;
    if (cl().clCreateCommandQueueWithProperties != nullptr && device_->info.version_number >= 200) {
      const cl_ulong properties[] = {CL_QUEUE_PROPERTIES, flags, 0};
      wanted = cl().clCreateCommandQueueWithProperties(device_->context, device_->id, properties,
                                                       &status);
    } else {
      wanted = cl().clCreateCommandQueue(device_->context, device_->id, flags, &status);
    }
    Check(status, device_, "creating a command queue");
  }
  queue_ = wanted;
}

cl_command_queue Stream::QueueForRecording() {
  std::lock_guard<std::mutex> lock(mutex_);
  return queue_ == queues_[0] ? queue_ : nullptr;
}

bool Stream::WantsEvent(size_t launches) const {
  return recording_ || (launches > 0 && launches_ + launches >= device_->checkpoint_interval);
}

void Stream::Submitted(const std::string& name, size_t launches, cl_event raw, Event* done) {
  Event event = raw == nullptr ? nullptr : Own(raw);
  if (done != nullptr) *done = event;
  if (recording_) {
    commands_.push_back({event, name, launches > 0});
    if (commands_.size() >= kMaxUnread) CollectRecords();
  }
  if (launches == 0) return;
  const size_t flushed = launches_ / kFlushInterval;
  launches_ += launches;
  if (launches_ / kFlushInterval != flushed) cl().clFlush(queue_);
  if (launches_ < device_->checkpoint_interval) return;
  launches_ = 0;
  cl().clFlush(queue_);  // what is waited for must have been sent
  checkpoints_.push_back(std::move(event));
  if (checkpoints_.size() > 3) {
    const cl_event oldest = checkpoints_.front().get();
    const cl_int status = cl().clWaitForEvents(1, &oldest);
    checkpoints_.pop_front();
    Check(status, device_, "waiting for earlier kernels");
  }
}

void Stream::FinishLocked() {
  if (!pending()) return;
  const cl_int status = cl().clFinish(queue_);
  pending_.store(false, std::memory_order_relaxed);
  launches_ = 0;
  checkpoints_.clear();
  Check(status, device_, "waiting for the device");
}

void Stream::Finish() {
  std::lock_guard<std::mutex> lock(mutex_);
  FinishLocked();
}

cl_int Stream::TryFinish() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  return pending() ? cl().clFinish(queue_) : CL_SUCCESS;
}

Event Stream::Mark() {
  cl_event event = nullptr;
  Check(cl().clEnqueueMarkerWithWaitList(queue_, 0, nullptr, &event), device_,
        "marking a point in a stream");
  pending_.store(true, std::memory_order_relaxed);
  return Own(event);
}

void Stream::Flush() {
  std::lock_guard<std::mutex> lock(mutex_);
  Check(cl().clFlush(queue_), device_, "flushing a stream");
}

Event Stream::MarkNow() {
  std::lock_guard<std::mutex> lock(mutex_);
  Event marker = Mark();
  Check(cl().clFlush(queue_), device_, "flushing a stream");
  return marker;
}

void Stream::WaitFor(Stream* other) {
  if (other == this || !other->pending()) return;
  const Event marker = other->MarkNow();
  std::lock_guard<std::mutex> lock(mutex_);
  const cl_event event = marker.get();
  Check(cl().clEnqueueBarrierWithWaitList(queue_, 1, &event, nullptr), device_,
        "making a stream wait for another");
  pending_.store(true, std::memory_order_relaxed);
}

void Stream::StartTiming(Span* span) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++timing_;
  span->open = true;
  ChooseQueue();
  FinishLocked();
  span->start = Mark();
  span->host_start = std::chrono::steady_clock::now();
}

void Stream::StopTiming(Span* span) {
  std::lock_guard<std::mutex> lock(mutex_);
  span->stop = Mark();
}

void Stream::CancelTiming(Span* span) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(span->open, false)) --timing_;  // the queue changes with the next span
}

int64_t Stream::Elapsed(Span* span) {
  std::lock_guard<std::mutex> lock(mutex_);
  FinishLocked();
  const auto host_time = std::chrono::steady_clock::now() - span->host_start;
  if (std::exchange(span->open, false)) --timing_;
  ChooseQueue();
  cl_ulong start = 0, stop = 0;
  auto read = [](const Event& event, cl_ulong* time) {
    return cl().clGetEventProfilingInfo(event.get(), CL_PROFILING_COMMAND_END, sizeof(*time), time,
                                        nullptr) == CL_SUCCESS;
  };
  if (read(span->start, &start) && read(span->stop, &stop) && start != 0 && stop >= start) {
    return static_cast<int64_t>(stop - start);
  }
  // A driver whose markers have no times: the host's clock, which knows the device was idle before.
  return std::chrono::duration_cast<std::chrono::nanoseconds>(host_time).count();
}

void Stream::StartRecording() {
  std::lock_guard<std::mutex> lock(mutex_);
  recording_ = true;
  commands_.clear();
  records_.clear();
  ChooseQueue();
}

std::vector<CommandRecord> Stream::StopRecording() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!recording_) return {};
  CollectRecords();
  recording_ = false;
  ChooseQueue();
  return std::exchange(records_, {});
}

void Stream::CollectRecords() {
  FinishLocked();
  for (const Command& command : commands_) {
    records_.push_back({command.name, command.is_kernel,
                        EventTime(command.event, CL_PROFILING_COMMAND_QUEUED, device_),
                        EventTime(command.event, CL_PROFILING_COMMAND_SUBMIT, device_),
                        EventTime(command.event, CL_PROFILING_COMMAND_START, device_),
                        EventTime(command.event, CL_PROFILING_COMMAND_END, device_)});
  }
  commands_.clear();
}

Stream* Streams::Get(void* handle) {
  if (handle == nullptr && default_ready_.load(std::memory_order_acquire)) return default_.get();
  std::lock_guard<std::mutex> lock(mutex_);
  if (handle == nullptr) {
    if (default_ == nullptr) {
      default_ = std::make_shared<Stream>(device_);
      if (recording_) default_->StartRecording();
      default_ready_.store(true, std::memory_order_release);
    }
    return default_.get();
  }
  for (const auto& stream : others_) {
    if (stream.get() == handle) return stream.get();
  }
  TVM_FFI_THROW(ValueError) << "The stream " << handle << " is none of OpenCL device "
                            << device_->Describe()
                            << ": it was freed, or belongs to another device";
  TVM_FFI_UNREACHABLE();
}

void* Streams::Create() {
  auto stream = std::make_shared<Stream>(device_);
  std::lock_guard<std::mutex> lock(mutex_);
  if (recording_) stream->StartRecording();
  others_.push_back(std::move(stream));
  has_others_.store(true, std::memory_order_relaxed);
  return others_.back().get();
}

void Streams::Destroy(void* handle) {
  std::shared_ptr<Stream> stream;  // outlives the lock: its destructor waits
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(others_.begin(), others_.end(),
                            [&](const auto& other) { return other.get() == handle; });
  if (found == others_.end()) return;
  stream = std::move(*found);
  others_.erase(found);
  has_others_.store(!others_.empty(), std::memory_order_relaxed);
  for (CommandRecord& record : stream->StopRecording()) finished_.push_back(std::move(record));
}

std::vector<std::shared_ptr<Stream>> Streams::List() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Stream>> streams = others_;
  if (default_ != nullptr) streams.push_back(default_);
  return streams;
}

void Streams::FinishAll() { FinishOthers(nullptr); }

void Streams::FinishOthers(const Stream* stream) {
  const bool only = default_ready_.load(std::memory_order_acquire) && stream == default_.get();
  if (only && !has_others()) return;
  for (const auto& other : List()) {
    if (other.get() != stream && other->pending()) other->Finish();
  }
}

void Streams::QuiesceForReuse() noexcept {
  if (has_others()) QuiesceAll();
}

void Streams::QuiesceAll() noexcept {
  try {
    for (const auto& stream : List()) stream->TryFinish();
    return;
  } catch (const std::bad_alloc&) {
    // No memory for a list: whoever asks for a stream waits meanwhile.
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (default_ != nullptr) default_->TryFinish();
  for (const auto& stream : others_) stream->TryFinish();
}

void Streams::StartRecording() {
  Get(nullptr);
  std::lock_guard<std::mutex> lock(mutex_);
  recording_ = true;
  finished_.clear();
  default_->StartRecording();
  for (const auto& stream : others_) stream->StartRecording();
}

std::vector<CommandRecord> Streams::StopRecording() {
  std::lock_guard<std::mutex> lock(mutex_);
  recording_ = false;
  std::vector<CommandRecord> records = std::exchange(finished_, {});
  auto take = [&](Stream* stream) {
    for (CommandRecord& record : stream->StopRecording()) records.push_back(std::move(record));
  };
  if (default_ != nullptr) take(default_.get());
  for (const auto& stream : others_) take(stream.get());
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.start < b.start; });
  return records;
}

}  // namespace tvm_edge::opencl
