// Frames on their way through a model, several at a time: each device works on another one.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "model.h"
#include "task_thread.h"

namespace tvm_edge {

/*!
 * \brief A model's stages as a pipeline, with a thread for each device.
 *
 * A model on one device has no stages: one thread runs frame after frame.
 */
class FrameStream {
 public:
  /*! \param depth How many frames may be on their way; their results until they are taken. */
  FrameStream(std::shared_ptr<Model> model, size_t depth);
  ~FrameStream();  // waits for steps that have begun
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  Model& model() { return *model_; }

  /*!
   * \brief Send a frame on its way. Inputs in host memory are copied.
   * \throws ffi::Error An InputError: the inputs do not fit, or `depth` frames are on their way.
   */
  void Push(std::vector<Tensor> inputs);
  /*!
   * \brief Results of the oldest frame; waits for it.
   * \throws ffi::Error What was wrong with that frame; those after it go on. An InputError: there is
   * none.
   */
  std::vector<Tensor> Pop();
  /*! \brief Count the frames that are on their way. */
  size_t pending();

 private:
  struct Frame {
    std::vector<Tensor> inputs;
    StagedFrame state;
    std::vector<Tensor> results;
    std::exception_ptr error;
    bool done = false;
  };

  void Submit(const std::shared_ptr<Frame>& frame, size_t stage);
  /*! \brief Do a stage of a frame; whether it is done. */
  bool Advance(Frame* frame, size_t stage);
  size_t DeviceOf(size_t stage) const;

  const std::shared_ptr<Model> model_;
  const size_t depth_;
  std::vector<Staging> slots_;  // memory for inputs, of as many frames as are on their way
  size_t pushed_ = 0;
  std::mutex pushing_;  // guards the two above

  std::mutex lock_;  // guards what follows, and frames' ends
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Frame>> frames_;
  bool ends_ = false;

  std::map<size_t, TaskThread> threads_;  // by device
};

}  // namespace tvm_edge
