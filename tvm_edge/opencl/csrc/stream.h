// Command queues: launches in flight are bounded, commands can be timed.
#ifndef TVM_EDGE_OPENCL_STREAM_H_
#define TVM_EDGE_OPENCL_STREAM_H_

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"

namespace tvm_edge::opencl {

class Device;

/*! \brief A command's event, released with its last holder. */
using Event = std::shared_ptr<EventTag>;

/*! \brief A command that ran while profiling; nanoseconds of the device's clock. */
struct CommandRecord {
  std::string name;
  bool is_kernel;
  cl_ulong queued, submitted, start, end;
};

/*!
 * \brief An in-order command queue.
 *
 * Timing needs a queue with profiling, which some drivers make slower, so there are two and the
 * stream changes over while somebody times or records.
 */
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(Device* device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /*!
   * \brief Enqueue a command: `enqueue(queue, event)` with `event` null unless one is wanted.
   * \param done Where not null, gets the command's event.
   * \return The status of `enqueue`; the caller knows what to say of a failure.
   */
  template <typename Enqueue>
  cl_int Submit(const std::string& name, bool is_kernel, const Enqueue& enqueue,
                Event* done = nullptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    return SubmitLocked(name, is_kernel ? 1 : 0, enqueue, done);
  }

  /*!
   * \brief The queue that launches are recorded for: the one without profiling.
   *
   * Null while commands are timed: what is recorded has no times of its own.
   */
  cl_command_queue QueueForRecording();
  /*!
   * \brief Enqueue `launches` recorded launches as one command, `enqueue(queue, event)`.
   * \param done Where not null, gets the command's event.
   * \return CL_INCOMPATIBLE_COMMAND_QUEUE_KHR while commands are timed, else as `Submit`.
   */
  template <typename Enqueue>
  cl_int SubmitRecorded(size_t launches, const Enqueue& enqueue, Event* done) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (queue_ != queues_[0]) return CL_INCOMPATIBLE_COMMAND_QUEUE_KHR;
    return SubmitLocked({}, launches, enqueue, done);
  }

  /*! \brief Have the device begin what was enqueued. */
  void Flush();
  /*! \brief An event of the commands enqueued so far, which the device begins. */
  Event MarkNow();
  /*! \brief Wait until all commands ran. */
  void Finish();
  /*! \brief The same for callers that must not throw. */
  cl_int TryFinish() noexcept;
  /*! \brief Whether commands were enqueued since the last wait. */
  bool pending() const { return pending_.load(std::memory_order_relaxed); }
  /*! \brief Make commands enqueued from now on wait for those of `other` so far. */
  void WaitFor(Stream* other);

  /*! \brief Two points in a stream, marked by events, and the host's clock at them. */
  struct Span {
    bool open = false;  // started, and neither read nor given up
    Event start, stop;
    std::chrono::steady_clock::time_point host_start;
  };
  void StartTiming(Span* span);
  void StopTiming(Span* span);
  /*! \brief Wait for a stopped span; nanoseconds by the device's clock. */
  int64_t Elapsed(Span* span);
  /*! \brief Give up a span that nobody will read. */
  void CancelTiming(Span* span) noexcept;

  void StartRecording();
  std::vector<CommandRecord> StopRecording();

 private:
  struct Command {
    Event event;
    std::string name;
    bool is_kernel;
  };

  template <typename Enqueue>
  cl_int SubmitLocked(const std::string& name, size_t launches, const Enqueue& enqueue,
                      Event* done) {
    cl_event event = nullptr;
    const bool wanted = done != nullptr || WantsEvent(launches);
    pending_.store(true, std::memory_order_relaxed);
    const cl_int status = enqueue(queue_, wanted ? &event : nullptr);
    if (status == CL_SUCCESS) Submitted(name, launches, event, done);
    return status;
  }
  bool WantsEvent(size_t launches) const;
  void Submitted(const std::string& name, size_t launches, cl_event event, Event* done);
  /*! \brief Use the queue with profiling, or the one without, as is needed now. */
  void ChooseQueue();
  Event Mark();
  void FinishLocked();
  void CollectRecords();

  Device* device_;
  std::mutex mutex_;                  // guards all but pending_
  cl_command_queue queue_ = nullptr;  // one of queues_
  std::atomic<bool> pending_{false};

  size_t launches_ = 0;            // since the last checkpoint
  std::deque<Event> checkpoints_;  // launches that were not waited for yet

  cl_command_queue queues_[2] = {nullptr, nullptr};  // without and with profiling, when needed
  int timing_ = 0;                                   // spans that were started and not stopped
  bool recording_ = false;
  std::vector<Command> commands_;  // recorded, times not read yet
  std::vector<CommandRecord> records_;
};

/*! \brief The streams of a device: the default one and those that users made. */
class Streams {
 public:
  explicit Streams(Device* device) : device_(device) {}

  /*! \brief The stream of a TVM handle; null means the default one. Throws for a foreign handle. */
  Stream* Get(void* handle);
  void* Create();
  void Destroy(void* handle);
  /*! \brief Wait for every stream. */
  void FinishAll();
  /*! \brief Wait for every stream but one, where they have work. */
  void FinishOthers(const Stream* stream);
  /*!
   * \brief Wait, where users made streams, before a block changes hands; never throws.
   *
   * One in-order queue keeps the next owner of a block behind the last; several do not.
   */
  void QuiesceForReuse() noexcept;
  /*! \brief Wait for every stream; never throws. */
  void QuiesceAll() noexcept;

  void StartRecording();
  std::vector<CommandRecord> StopRecording();

 private:
  std::vector<std::shared_ptr<Stream>> List();
  bool has_others() const { return has_others_.load(std::memory_order_relaxed); }

  Device* device_;
  std::mutex mutex_;                 // guards everything below
  std::shared_ptr<Stream> default_;  // set once, before default_ready_
  std::atomic<bool> default_ready_{false};
  std::vector<std::shared_ptr<Stream>> others_;
  std::atomic<bool> has_others_{false};
  bool recording_ = false;
  std::vector<CommandRecord> finished_;  // of streams freed while recording
};

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_STREAM_H_
