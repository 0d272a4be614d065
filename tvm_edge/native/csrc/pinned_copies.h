// Copies to a GPU with memory of its own, through memory that its driver has pinned.
//
// What is not pinned the driver copies to memory of its own first, on the thread that asks: 6 to 7
// GB/s on an H200's host, whose link carries 55. Here several threads read pieces into one of two
// pinned blocks while the other is copied: 15 GB/s on an H100's.
//
// Only CUDA has memory that a program can ask to be pinned; OpenCL says nothing of it.
#pragma once

#include <memory>
#include <vector>

#include "device.h"
#include "mapped_file.h"
#include "task_thread.h"

namespace tvm_edge {

class PinnedCopies {
 public:
  /*!
   * \param device Where copies go; its work is in the order of one stream.
   * \param host Whose memory the blocks are: that which the driver has pinned.
   */
  PinnedCopies(const Device* device, DLDevice host);

  /*!
   * \brief Have bytes copied; kernels launched from now on find them there.
   * \param file Where the source is mapped from: it is read from there. May be null.
   * \throws ffi::Error An ArtifactError: the file is shorter by now, or cannot be read.
   */
  void Copy(const Tensor& source, const MappedFile* file, const Tensor& target);

 private:
  void Fill(char* block, const char* source, size_t nbytes, const MappedFile* file);

  const Device* device_;
  Tensor blocks_[2];
  int next_ = 0;  // nothing reads it any more; the copy of the other may still run
  std::vector<std::unique_ptr<TaskThread>> readers_;
};

}  // namespace tvm_edge
