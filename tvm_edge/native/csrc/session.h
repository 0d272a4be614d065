// Session: loaded code on its devices, with TVM's virtual machines and the weights.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "artifact.h"
#include "binding.h"
#include "captures.h"
#include "device.h"
#include "entry.h"
#include "result_memory.h"
#include "shape_recordings.h"
#include "threads.h"
#include "weight_stream.h"

namespace tvm_edge {

/*! \brief Aligned memory for a model's inputs, to be used again. */
class Staging {
 public:
  /*!
   * \brief A tensor with the values of an input, which begins on 64 bytes.
   *
   * Copying 224x224x3 floats costs 12 us, and 28 with memory of its own. An input of open dimensions
   * has as much memory as its largest shape needed until then.
   */
  Tensor Copied(int index, const DLTensor& value);

 private:
  struct Staged {
    Tensor memory;
    Tensor view;  // of the last shape
  };
  std::map<int, Staged> staged_;
};

/*!
 * \brief TVM's virtual machines for one run at a time, and the memory it takes inputs in.
 *
 * Each entry has its own: a machine tells its recordings apart by numbers that the entries use
 * alike.
 */
struct Machine {
  std::timed_mutex lock;
  std::map<std::string, Entry> entries;  // made when they are first needed
  std::map<std::string, std::unique_ptr<ShapeRecordings>> recordings;  // null: never recorded
  Staging staging;
};

/*! \brief A part of main that one device can run while others have other frames. */
struct Stage {
  size_t device;
  std::shared_ptr<std::timed_mutex> lock;  // of the virtual machine; stages of one device share it
  Entry entry;
};

/*! \brief State of one frame between two stages: results of its last, addresses of its inputs. */
struct StagedFrame {
  std::vector<ffi::Any> values;
  std::vector<const void*> taken;
};

/*!
 * \brief Code on its devices.
 *
 * Runs at the same time need virtual machines of their own, which share code and weights. There is
 * one for each `threads.count` of the CPUs that the process may use: more would only wait for each
 * other's threads. A GPU has one queue, so its models have one machine. Runs that find none free
 * take turns.
 */
class Session {
 public:
  /*!
   * \param code The library.
   * \param weights In host memory. A device that is the CPU reads them there; those of another are
   * copied to it: once, or in every run those that the plan says are streamed.
   * \param device_index Number of the device among those of its kind.
   * \param artifact Where the weights are from; may be null. A weight that the device has a copy of
   * need not stay in host memory.
   * \throws ffi::Error A DeviceUnavailableError, an ArtifactError.
   */
  Session(ffi::Module code, std::vector<Tensor> weights, const Signature& signature,
          ThreadChoice threads, int64_t device_index, std::shared_ptr<Artifact> artifact);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Signature& signature() const { return signature_; }
  const Choice& every() const { return every_; }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  bool streams() const { return streams_; }

  /*!
   * \brief Bind inputs and run.
   *
   * The results are the caller's: no later run, and no change to an input or to another result,
   * changes them. They are where the code leaves them.
   * \param memory For results, by position; may be empty. A result of the CPU lies there where
   * that has room and no kernel reads it; others are for CopyOut.
   * \throws ffi::Error An InputError, an ArtifactError; a DeviceUnavailableError: the process forked
   * since the model was loaded, and part of it runs on a GPU.
   */
  std::vector<Tensor> Run(const Choice& choice, std::vector<Tensor> inputs,
                          const std::vector<ResultMemory>& memory = {});
  /*! \brief A result in host memory: itself, or a copy. */
  Tensor OnHost(const Tensor& output) const;
  /*! \brief Copy a result to host memory, which has room for it. */
  void CopyOut(const Tensor& output, void* into) const;
  /*! \brief Copy a result to memory of a device of this session's. */
  void CopyWithin(const Tensor& output, const Tensor& into) const;

  /*! \brief Run on every machine, so that no later run is a machine's first. */
  std::vector<Tensor> WarmUp(const Choice& choice, std::vector<Tensor> inputs);

  /*! \brief Inputs where their entries want them, for any number of runs. */
  std::vector<Tensor> Place(const Choice& choice, std::vector<Tensor> inputs);
  /*! \brief Run on inputs from Place, so many times in a row, to the end. */
  void RunPlaced(const Choice& choice, const std::vector<Tensor>& placed, int64_t runs);

  /*!
   * \brief Run once with `instrument(name, before)` around every call of the virtual machine.
   *
   * Kernels of a GPU run one by one, each to its end before the next begins.
   */
  void RunInstrumented(const Choice& choice, std::vector<Tensor> inputs,
                       const ffi::Function& instrument);

  /*!
   * \brief Parts of main that devices can run for different frames at the same time.
   *
   * One after the other they do what main does. None for a model on one device.
   */
  const std::vector<Stage>& stages();
  /*! \brief Run the first stage on the model's inputs. */
  StagedFrame RunFirstStage(std::vector<Tensor> inputs);
  /*! \brief Run a stage on what the stage before it made. */
  StagedFrame RunStage(size_t number, const StagedFrame& frame);
  /*! \brief The last stage's results, the caller's own like those of Run. */
  std::vector<Tensor> ResultsOf(const StagedFrame& frame) const;

  /*! \brief Let kernels of the calling thread, which serves one stream, use the model's threads. */
  void StartThread() const { UseThreadsOf(threads_); }
  void Synchronize() const;
  /*! \brief Why a driver did not record what it says it can; once, then empty. */
  std::string RecordingFailure() const;
  /*! \brief Shapes that an entry's runs replay a recording of; of the first machine, for tests. */
  std::vector<Shapes> Recorded(const std::string& function);
  /*! \brief How many runs may happen at the same time, and virtual machines made until now. */
  size_t machine_count() const { return machines_.size(); }
  size_t machines_made() const { return machines_made_; }
  /*! \brief Inputs that runs copied to memory of ours until now, and those that need not be. */
  size_t inputs_staged() const { return inputs_staged_; }
  const std::set<int>& inputs_anywhere() const { return anywhere_; }
  std::vector<int64_t> WindowBytes() const { return stream_->window_bytes(); }

  /*! \throws ffi::Error A DeviceUnavailableError. */
  void CheckProcess() const;

  // Of forks (forks.cc).
  bool SurvivesForks() const;
  std::vector<std::timed_mutex*> RunLocks();
  /*! \brief In a forked child: take new machines in place of those in the middle of a run. */
  void ReplaceHeld(const std::set<std::timed_mutex*>& held);

 private:
  void BindWeights(const std::vector<Tensor>& weights, const Artifact* artifact);
  std::shared_ptr<VirtualMachine> MakeVirtualMachine() const;
  std::string NameOf(const std::string& function) const;
  std::unique_lock<std::timed_mutex> Choose(Machine** machine);
  const Entry& EntryOf(Machine* machine, const std::string& function);
  ShapeRecordings* RecordingsOf(Machine* machine, const std::string& function);
  std::vector<Tensor> Call(Machine* machine, const std::string& function,
                           const std::vector<Tensor>& inputs);
  std::vector<Tensor> RunOn(Machine* machine, const Choice& choice,
                            const std::vector<Tensor>& inputs,
                            const std::vector<ResultMemory>& memory = {});
  std::vector<Tensor> RunEntry(Machine* machine, const EntryPoint& entry,
                               const std::vector<Tensor>& inputs,
                               const std::vector<ResultMemory>& memory);
  Tensor Staged(Machine* machine, int index, const Tensor& value) const;
  std::vector<Tensor> Own(std::vector<Tensor> outputs, std::vector<const void*> taken) const;
  Arguments WithWeights(const std::vector<Tensor>& inputs) const;
  void FindStages();
  template <typename Function>
  auto InContext(const Device* device, const Function& run);

  const Signature signature_;
  const Choice every_;
  const ThreadChoice threads_;
  const ffi::Module code_;
  std::vector<std::unique_ptr<Device>> devices_;
  const Device* main_device_;
  std::shared_ptr<VirtualMachine> first_;  // tells what functions the code has
  bool replays_ = true;                    // all drivers do
  bool streams_ = false;
  std::set<int> anywhere_;  // inputs that need not begin on 64 bytes
  ffi::Any weights_;        // an array
  std::vector<Tensor> host_weights_;
  std::set<const void*> weight_memory_;
  std::unique_ptr<WeightStream> stream_;
  std::unique_ptr<SeenShapes> shapes_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::atomic<size_t> turn_{0};
  mutable std::atomic<size_t> machines_made_{0};
  mutable std::atomic<size_t> inputs_staged_{0};
  std::once_flag stages_found_;
  std::vector<Stage> stages_;
  pid_t process_;
};

// -------------------------------------------------------------------------- implementation

/*! \brief Context for what runs on a device, or null: on any. */
template <typename Function>
auto Session::InContext(const Device* device, const Function& run) {
  const bool on_gpu = device == nullptr || !device->is_host();
  try {
    if (main_device_->is_host() && !streams_) {
      stream_->CheckFiles();
      auto result = run();
      stream_->CheckFiles();
      return result;
    }
    DefaultStream stream(*main_device_);
    WeightStream::Running running(stream_.get(), on_gpu);
    // The last that a run waits for: whoever records waits for all that share the driver.
    std::optional<Captures::Shared> driver;
    if (main_device_->may_capture()) driver.emplace();
    auto result = run();
    running.Finish();
    stream_->CheckFiles();
    return result;
  } catch (...) {
    stream_->CheckFiles();  // whatever else went wrong may have come of zeros
    throw;
  }
}

/*! \brief Have forks of this process wait for runs of a session, for as long as it lives. */
void SurviveForks(Session* session);
void ForgetForks(Session* session);

}  // namespace tvm_edge
