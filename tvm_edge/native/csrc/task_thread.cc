#include "task_thread.h"

#include <utility>

namespace tvm_edge {

std::exception_ptr Task::Wait() {
  std::unique_lock<std::mutex> lock(lock_);
  done_.wait(lock, [this] { return state_ == State::kDone; });
  return error_;
}

void Task::Settle() {
  std::unique_lock<std::mutex> lock(lock_);
  if (state_ == State::kPending) state_ = State::kDone;
  done_.wait(lock, [this] { return state_ == State::kDone; });
}

void Task::Run() {
  {
    std::lock_guard<std::mutex> lock(lock_);
    if (state_ == State::kDone) return;
    state_ = State::kRunning;
  }
  std::exception_ptr error;
  try {
    run_();
  } catch (...) {
    error = std::current_exception();
  }
  run_ = nullptr;  // which may end what it holds
  std::lock_guard<std::mutex> lock(lock_);
  error_ = error;
  state_ = State::kDone;
  done_.notify_all();
}

TaskThread::~TaskThread() {
  {
    std::lock_guard<std::mutex> lock(state_->lock);
    state_->ends = true;
  }
  state_->changed.notify_all();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

std::shared_ptr<Task> TaskThread::Submit(std::function<void()> run) {
  auto task = std::make_shared<Task>(std::move(run));
  {
    std::lock_guard<std::mutex> lock(state_->lock);
    if (!thread_.joinable()) thread_ = std::thread([state = state_] { state->Loop(); });
    state_->waiting.push_back(task);
  }
  state_->changed.notify_one();
  return task;
}

void TaskThread::State::Loop() {
  while (true) {
    std::shared_ptr<Task> task;
    {
      std::unique_lock<std::mutex> guard(lock);
      changed.wait(guard, [this] { return ends || !waiting.empty(); });
      if (waiting.empty()) return;
      task = std::move(waiting.front());
      waiting.pop_front();
    }
    task->Run();
  }
}

}  // namespace tvm_edge
