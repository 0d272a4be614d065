// Model: an artifact's session, as the C API has it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "session.h"
#include "task_thread.h"

namespace tvm_edge {

struct LoadOptions {
  const char* device = nullptr;  // null: the first of its kind
  int64_t num_threads = 0;
  std::vector<int> cpus;
};

/*! \brief Bound on runs that wait: each keeps a copy of its inputs. */
class RunQueue {
 public:
  /*! \brief Have something run, in order; waits while `most` are not done. */
  std::shared_ptr<Task> Submit(size_t most, std::function<void()> run);

 private:
  struct Count {
    std::mutex lock;
    std::condition_variable changed;
    size_t pending = 0;
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  TaskThread thread_;
};

/*!
 * \brief Load an artifact's code, in work-groups that the driver allows.
 */
ffi::Module LoadCode(const Artifact& artifact, const Device& device);

class Model {
 public:
  /*! \throws ffi::Error */
  Model(std::shared_ptr<Artifact> artifact, const LoadOptions& options);

  const Signature& signature() const { return artifact_->signature; }
  Session& session() { return *session_; }
  RunQueue& queue() { return queue_; }

 private:
  std::shared_ptr<Artifact> artifact_;
  std::unique_ptr<Session> session_;
  RunQueue queue_;
};

}  // namespace tvm_edge
