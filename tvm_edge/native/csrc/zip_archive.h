// Members of a ZIP archive that are stored as they are (PKWARE's APPNOTE 6.3.10).
#pragma once

#include <map>
#include <string>

#include "byte_source.h"

namespace tvm_edge {

/*!
 * \brief Where each member's content lies, by its name.
 * \throws Damage Not an archive, cut, inconsistent; or a member is compressed or encrypted.
 */
std::map<std::string, Span> StoredMembers(const ByteSource& source);

}  // namespace tvm_edge
