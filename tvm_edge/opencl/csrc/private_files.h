// Files that this user alone has written, and a keyed digest that nobody else can make.
#ifndef TVM_EDGE_OPENCL_PRIVATE_FILES_H_
#define TVM_EDGE_OPENCL_PRIVATE_FILES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tvm_edge::opencl {

using Digest = std::array<char, 16>;
using DigestKey = std::array<uint64_t, 2>;

/*! \brief SipHash-2-4 with 128 bits: a message authentication code for as long as `key` is secret. */
Digest KeyedDigest(std::string_view bytes, const DigestKey& key);

/*!
 * \brief Read a file: regular, no link, of this user, that nobody else may write, of bounded size.
 *
 * \param found Set to whether there is anything of that name.
 * \param touch Whether to set the times of the file to now.
 */
std::optional<std::string> ReadPrivate(const std::string& path, uint64_t max_bytes, bool* found,
                                       bool touch = false);

/*! \brief Write a file that is there whole or not at all; false where it cannot be. */
bool WritePrivate(const std::string& folder, const std::string& path, std::string_view bytes,
                  bool replace = true);

/*! \brief The key that a folder's digests are made with; made itself if `make` says so. */
std::optional<DigestKey> FolderKey(const std::string& folder, bool make);

/*! \brief Remove what killed processes were writing in a folder; never throws. */
void RemoveAbandoned(const std::string& folder) noexcept;

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_PRIVATE_FILES_H_
