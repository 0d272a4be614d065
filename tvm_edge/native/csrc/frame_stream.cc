#include "frame_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "error.h"

namespace tvm_edge {

FrameStream::FrameStream(std::shared_ptr<Model> model, size_t depth)
    : model_(std::move(model)), depth_(depth), slots_(depth) {
  const size_t stages = model_->session().stages().size();
  for (size_t stage = 0; stage < std::max<size_t>(stages, 1); ++stage) threads_[DeviceOf(stage)];
}

FrameStream::~FrameStream() {
  std::unique_lock<std::mutex> lock(lock_);
  ends_ = true;
  changed_.wait(lock, [&] {
    return std::all_of(frames_.begin(), frames_.end(),
                       [](const auto& frame) { return frame->done; });
  });
}

size_t FrameStream::DeviceOf(size_t stage) const {
  const auto& stages = model_->session().stages();
  return stages.empty() ? 0 : stages.at(stage).device;
}

void FrameStream::Push(std::vector<Tensor> inputs) {
  Session& session = model_->session();
  session.CheckProcess();
  std::vector<Tensor> checked = inputs;
  Bind(session.signature(), session.every(), &checked);
  std::lock_guard<std::mutex> pushing(pushing_);
  if (const size_t count = pending(); count >= depth_) {
    ThrowInput(std::to_string(count) + " frames are on their way, and depth is " +
                   std::to_string(depth_) + "; take the oldest one's results first",
               {"stream", "less than " + std::to_string(depth_) + " frames", std::to_string(count)});
  }
  // The frame that had the slot before was taken.
  Staging& slot = slots_[pushed_ % depth_];
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!IsHostMemory(inputs[i]->device)) continue;
    inputs[i] = slot.Copied(static_cast<int>(i), *inputs[i].operator->());
  }
  auto frame = std::make_shared<Frame>();
  frame->inputs = std::move(inputs);
  {
    std::lock_guard<std::mutex> lock(lock_);
    frames_.push_back(frame);
  }
  try {
    Submit(frame, 0);
  } catch (...) {
    std::lock_guard<std::mutex> lock(lock_);
    frames_.pop_back();
    throw;
  }
  ++pushed_;
}

void FrameStream::Submit(const std::shared_ptr<Frame>& frame, size_t stage) {
  threads_.at(DeviceOf(stage)).Submit([this, frame, stage] {
    if (!Advance(frame.get(), stage)) {
      try {
        Submit(frame, stage + 1);
        return;
      } catch (...) {  // no thread for the next device
        frame->error = std::current_exception();
      }
    }
    std::lock_guard<std::mutex> lock(lock_);
    frame->done = true;
    changed_.notify_all();  // with the lock: the stream may be gone after it
  });
}

bool FrameStream::Advance(Frame* frame, size_t stage) try {
  {
    std::lock_guard<std::mutex> lock(lock_);
    if (ends_) return true;
  }
  Session& session = model_->session();
  const size_t stages = session.stages().size();
  if (stages == 0) {
    frame->results = session.Run(session.every(), std::move(frame->inputs));
    return true;
  }
  frame->state = stage == 0 ? session.RunFirstStage(std::move(frame->inputs))
                            : session.RunStage(stage, frame->state);
  if (stage + 1 < stages) return false;
  frame->results = session.ResultsOf(frame->state);
  return true;
} catch (...) {
  frame->error = std::current_exception();
  return true;
}

std::vector<Tensor> FrameStream::Pop() {
  model_->session().CheckProcess();
  std::shared_ptr<Frame> frame;
  {
    std::unique_lock<std::mutex> lock(lock_);
    if (frames_.empty()) {
      ThrowInput("no frame is on its way; push one first", {"stream", "a frame", "none"});
    }
    frame = frames_.front();
    changed_.wait(lock, [&] { return frame->done; });
    // Another thread may have taken it meanwhile.
    const auto place = std::find(frames_.begin(), frames_.end(), frame);
    if (place == frames_.end()) {
      ThrowInput("another thread took the frame; take frames of a stream by one thread",
                 {"stream", "one thread", "several"});
    }
    frames_.erase(place);
  }
  if (frame->error) std::rethrow_exception(frame->error);
  return std::move(frame->results);
}

size_t FrameStream::pending() {
  std::lock_guard<std::mutex> lock(lock_);
  return frames_.size();
}

}  // namespace tvm_edge
