// The artifact: one file with the library, the weights and a manifest
// (tvm_edge/runtime/artifact.py describes and writes it).
#pragma once

#include <tvm/runtime/tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "manifest.h"
#include "mapped_file.h"
#include "memory_file.h"

namespace tvm_edge {

constexpr int kFormatVersion = 1;

/*! \brief An opened artifact whose checksums hold: what was checked is what is used. */
struct Artifact {
  std::string path;      // for messages
  std::string manifest;  // JSON
  Signature signature;
  std::vector<tvm::runtime::Tensor> weights;  // over the mapped file, memory, or a copy
  std::shared_ptr<MemoryFile> library;
  std::shared_ptr<MemoryFile> smaller;  // the same in smaller work-groups; null: there is none
  std::string programs;                 // kernels as a driver built them; may be empty
  std::shared_ptr<MappedFile> mapping;  // null of one that was copied, or lies in memory

  /*! \brief Take the pages of a weight out of this process's memory; a copy stays. */
  void Release(size_t index) const;
};

/*!
 * \brief Open an artifact, check every byte of it, and map its weights.
 * \param fd An open file; may be closed afterwards.
 * \param path For messages.
 * \param copy Read the weights into memory: nobody who writes to the file later changes them.
 * \throws ffi::Error An ArtifactError: not an artifact, truncated, altered, of another format, made
 * with another TVM, or somebody writes to it.
 */
std::shared_ptr<Artifact> OpenArtifact(int fd, const std::string& path, bool copy);
std::shared_ptr<Artifact> OpenArtifact(const std::string& path, bool copy);

/*! \brief The same of memory, which `owner` holds, and which nobody writes as long as it does. */
std::shared_ptr<Artifact> OpenArtifact(const void* data, size_t nbytes,
                                       std::shared_ptr<void> owner, bool copy);

}  // namespace tvm_edge
