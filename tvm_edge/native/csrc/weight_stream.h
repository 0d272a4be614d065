// Weights that are read part by part while a model runs, and are never in memory as a whole.
//
// Rallapalli et al., "Are Very Deep Neural Networks Feasible on Mobile Devices?", section 3: a fully
// connected layer whose weights do not fit the device is computed in parts, each with what is read
// of the weights for it. The compiler cuts such layers (relay_passes/memory/split_fc.py), and main
// asks here for each part before the kernel that reads it. The weights of a whole layer are a part
// as well (relay_passes/memory/stream_layers.py).
//
// On a CPU a kernel reads a part where it is mapped from the artifact. While it does, the next part
// is read from disk, if it is not in the system's cache of the file. Nothing is copied. As long as
// the system keeps all of the file, its pages stay mapped: to map them again would be slower than to
// compute with them, and the system takes them back when it wants. When it does, what was used is
// unmapped at once, and the system finds pages to drop that are not wanted next.
//
// A device that reads host memory, as an OpenCL device that is the CPU, is lent each part where it
// is mapped, and all of that holds for it.
//
// To another device a part is copied. Where the host may write the device's memory at any time
// there are two windows: the next part is read into one, by another thread, while a kernel reads
// the other. Elsewhere there is one, and the copy waits for the kernel. It goes through pinned
// memory where the driver has any (pinned_copies.h).
//
// The weights of a model that runs in the process that compiled it are in memory: parts come from
// there.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device.h"
#include "mapped_file.h"
#include "pinned_copies.h"
#include "task_thread.h"

namespace tvm_edge {

/*! \brief Parts of the weights that one session has in memory. */
class WeightStream {
 public:
  /*!
   * \param weights Of a model, in host memory; some may be mapped.
   * \param parts How many of them are streamed.
   * \param device The one beside the CPU that reads parts; may be null.
   * \param largest Bytes of the largest part that is copied, 0 if nobody knows: windows that grow
   * with the parts would be there beside smaller ones, which the run still has.
   */
  WeightStream(const std::vector<Tensor>& weights, int parts, const Device* device,
               size_t largest);
  ~WeightStream();

  /*! \brief Check that files are what they were. \throws ffi::Error An ArtifactError. */
  void CheckFiles() const {
    for (const auto& file : files_) file->Check();
  }
  bool has_files() const { return !files_.empty(); }

  /*!
   * \brief While it lives, main or a stage of it runs on this thread and takes its parts.
   *
   * A run, or the stage of a stream, with kernels of a GPU has the windows for itself meanwhile.
   */
  class Running {
   public:
    Running(WeightStream* stream, bool on_gpu);
    ~Running();
    /*! \brief The run was one; kernels that read mapped pages end. */
    void Finish();

   private:
    WeightStream* stream_;
    bool on_gpu_;
    std::unique_lock<std::mutex> windows_;
    WeightStream* outside_;
  };

  /*! \brief Return `part` itself; what follows is read meanwhile. */
  Tensor NextPart(const Tensor& part, const Tensor& following, const Tensor& before);
  /*! \brief Return `part` on the device; a second window is filled with `following` meanwhile. */
  Tensor UploadPart(const Tensor& part, const Tensor& following, const Tensor& before);

  /*! \brief Bytes of each window there is; for tests. */
  std::vector<int64_t> window_bytes() const;

 private:
  struct Window {
    size_t nbytes;
    Tensor buffer;
    const void* part = nullptr;    // in host memory
    std::shared_ptr<Task> filled;  // by another thread

    void Settle() const {
      if (filled) filled->Settle();
    }
    bool Has(const Tensor& wanted) const;
    Tensor AsPart(const Tensor& wanted) const;
  };

  MappedFile* FileOf(const Tensor& part) const;
  void Advance(const MappedFile* file, const Tensor& following, const Tensor& before);
  void MakeWindows(size_t nbytes);
  Tensor Copy(const Tensor& part, const Tensor& following);
  void Begin(Window* window, const Tensor& part);
  void FillMapped(const ffi::Any& started, const Tensor& part);

  std::map<const void*, std::shared_ptr<MappedFile>> file_of_;
  std::vector<std::shared_ptr<MappedFile>> files_;
  const int parts_;
  std::atomic<int> scarce_{0};  // parts to come that are dropped after their kernels
  const Device* device_;
  const size_t largest_;
  bool reads_late_;  // kernels may read mapped pages when a run returns
  std::mutex uploading_;
  std::vector<Window> windows_;
  size_t current_ = 0;
  std::map<const void*, std::optional<Tensor>> lent_;  // none: only copied
  std::shared_ptr<Task> ahead_;                        // for the one window there is
  std::unique_ptr<PinnedCopies> pinned_;
  TaskThread reader_;  // the last member: it ends before what it uses
};

/*! \brief Add vm.builtin.tvm_edge.next_part and upload_part to TVM's registry. */
void RegisterWeightStream();

}  // namespace tvm_edge
