// Members of a ZIP archive that are stored as they are (PKWARE's APPNOTE 6.3.10).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "byte_source.h"

namespace tvm_edge {

struct Member {
  Span content;
  uint32_t checksum;  // CRC-32
};

/*! \brief CRC-32 of ISO 3309, as archives have it. */
uint32_t Crc32(std::string_view content);

/*!
 * \brief Where each member's content lies, by its name.
 * \throws Damage Not an archive, cut, inconsistent; or a member is compressed or encrypted.
 */
std::map<std::string, Member> StoredMembers(const ByteSource& source);

}  // namespace tvm_edge
