// Built programs on disk and in memory, so that a second process builds nothing.
#ifndef TVM_EDGE_OPENCL_PROGRAM_STORE_H_
#define TVM_EDGE_OPENCL_PROGRAM_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "abi.h"
#include "private_files.h"

namespace tvm_edge::opencl {

/*!
 * \brief Driver binaries by key (source, options, device, driver).
 *
 * One file per entry in TVM_EDGE_OPENCL_CACHE (0: none; default $XDG_CACHE_HOME/tvm-edge/opencl),
 * written under another name and renamed, so that readers see whole entries or none. An entry holds
 * its key and a digest with a secret of this user's, which the folder keeps in a file for him alone:
 * what does not match, or is anybody else's, is a miss. The oldest entries go when all together
 * exceed TVM_EDGE_OPENCL_CACHE_SIZE MiB. A folder that cannot be written is no error.
 */
class ProgramStore {
 public:
  struct Stats {
    int64_t built = 0, from_disk = 0, from_artifact = 0, stored = 0, damaged = 0, waiting = 0;
  };
  using Load = std::function<cl_program(const std::string& binary)>;

  static ProgramStore& Global();

  /*! \brief The program that `load` makes of an entry; null if there is none or it refuses all. */
  cl_program Use(const std::string& key, const Load& load);
  /*! \brief Write an entry, unless `binary` is empty. Never throws: a cache may fail. */
  void Put(const std::string& key, const std::string& binary) noexcept;
  /*! \brief Whether entries are written at all. */
  bool keeps() const { return !folder_.empty(); }
  void CountBuild();

  /*!
   * \brief Add the entries that an artifact brought, each until it is used.
   *
   * Throws ValueError where they are damaged.
   */
  void AddPack(std::string_view pack);
  /*! \brief One entry as bytes; a pack is several after one another. */
  static std::string Entry(const std::string& key, const std::string& binary);

  Stats stats() const;

 private:
  ProgramStore();
  /*! \brief The secret of the folder; with `make` a new one where there is none. */
  std::optional<DigestKey> Secret(bool make);
  std::string Path(const std::string& key, const DigestKey& secret) const;
  /*! \brief The binary that the folder has for a key; its path, and whether anything is there. */
  std::optional<std::string> Stored(const std::string& key, std::string* path,
                                    bool* found) noexcept;
  void Trim() noexcept;

  std::string folder_;  // empty: nothing is kept
  int64_t max_bytes_ = 0;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, std::string> from_artifacts_;
  Stats stats_;
  std::optional<DigestKey> secret_;
  bool cleaned_ = false;
};

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_PROGRAM_STORE_H_
