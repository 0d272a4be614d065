// A thread that does one thing after the other; it starts with the first.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tvm_edge {

/*! \brief Something that a thread is to do. */
class Task {
 public:
  explicit Task(std::function<void()> run) : run_(std::move(run)) {}

  /*! \brief Wait until it is done. Returns what it threw. */
  std::exception_ptr Wait();
  /*! \brief Do without it, if nobody has begun; else wait until it is done. */
  void Settle();

 private:
  friend class TaskThread;
  void Run();

  enum class State { kPending, kRunning, kDone };
  std::mutex lock_;
  std::condition_variable done_;
  State state_ = State::kPending;
  std::function<void()> run_;
  std::exception_ptr error_;
};

class TaskThread {
 public:
  TaskThread() = default;
  ~TaskThread();  // what waits is done first
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  std::shared_ptr<Task> Submit(std::function<void()> run);

 private:
  /*! \brief What the thread uses: a task of its own may be the last user of the object. */
  struct State {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::shared_ptr<Task>> waiting;
    bool ends = false;

    void Loop();
  };

  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace tvm_edge
