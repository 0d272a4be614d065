// Launches recorded once and replayed as one command: cl_khr_command_buffer, where a driver has it.
#ifndef TVM_EDGE_OPENCL_COMMAND_BUFFER_H_
#define TVM_EDGE_OPENCL_COMMAND_BUFFER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "stream.h"

namespace tvm_edge::opencl {

class Device;
struct Allocation;
struct Kernel;

/*! \brief What a device's driver has of the extension, and what came of using it. */
class CommandBuffers {
 public:
  struct Stats {
    int64_t recorded = 0;  // command buffers made
    int64_t launches = 0;  // in all of them
    int64_t replayed = 0;  // times that one was enqueued
    int64_t plain = 0;     // runs of a region launch by launch, whatever the reason
    int64_t failed = 0;    // regions that the driver would not record or replay
  };

  /*! \brief Look for the extension; reads TVM_EDGE_OPENCL_COMMAND_BUFFER. */
  explicit CommandBuffers(const Device& device);

  /*! \brief Why launches are not recorded; empty if they are. */
  const std::string& missing() const { return missing_; }
  /*! \brief Whether a command buffer may be enqueued again before it has run. */
  bool simultaneous() const { return simultaneous_; }

#define TVM_EDGE_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  TVM_EDGE_OPENCL_COMMAND_BUFFER(TVM_EDGE_MEMBER)
#undef TVM_EDGE_MEMBER

  void CountRecorded(size_t launches);
  void CountReplayed() { replayed_.fetch_add(1, std::memory_order_relaxed); }
  void CountPlain() { plain_.fetch_add(1, std::memory_order_relaxed); }
  void CountFailed(const std::string& reason);
  Stats stats() const;
  /*! \brief Why a region was not recorded, for one warning: told once, empty from then on. */
  std::string TakeFailure();

 private:
  std::string Look(const Device& device);

  std::string missing_;
  bool simultaneous_ = false;
  std::atomic<int64_t> replayed_{0}, plain_{0};
  mutable std::mutex mutex_;  // guards what follows
  Stats stats_;
  std::string failure_;
};

/*! \brief A sequence of launches on a device as one command. */
class CommandBuffer {
 public:
  /*! \brief An empty one for the queues of `queue`'s kind; throws RuntimeError. */
  CommandBuffer(Device* device, cl_command_queue queue);
  ~CommandBuffer();
  CommandBuffer(const CommandBuffer&) = delete;
  CommandBuffer& operator=(const CommandBuffer&) = delete;

  /*!
   * \brief Append a launch; throws RuntimeError.
   * \param kernel A kernel object of this launch's own, with its arguments set.
   * \param blocks The memory that the arguments name.
   */
  void Append(std::unique_ptr<Kernel> kernel, const std::string& name, cl_uint dimensions,
              const size_t* global, const size_t* local, const std::vector<Allocation*>& blocks);
  /*! \brief Make it ready to be enqueued; throws RuntimeError. */
  void Finalize();
  /*! \brief Enqueue it. CL_INCOMPATIBLE_COMMAND_QUEUE_KHR while the stream's commands are timed. */
  cl_int Replay(Stream* stream);

  /*! \brief Whether the host has a view of memory that a launch would touch. */
  bool HasViews() const;
  size_t launches() const { return kernels_.size(); }

  Device* const device;

 private:
  cl_command_buffer_khr handle_ = nullptr;
  /*!
   * \brief A kernel object each: pocl before 5.0 reads the arguments at every replay, from the
   * object, where the extension says that recording copies them.
   */
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Allocation*> blocks_;  // each once
  Event last_;                       // of the replay before, where the next must wait for it
};

/*! \brief What the thread's launches are appended to instead of being enqueued; null: nothing. */
CommandBuffer* ThreadRecording();

/*! \brief Throw RuntimeError if the thread is recording: `what` would not happen at a replay. */
void RefuseWhileRecording(const char* what);

/*! \brief Record the thread's launches while this lives. */
class RecordingScope {
 public:
  explicit RecordingScope(CommandBuffer* commands);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
};

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_COMMAND_BUFFER_H_
