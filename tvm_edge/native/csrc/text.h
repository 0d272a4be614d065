// Values in messages, written as Python writes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tvm_edge {

/*! \brief A string in quotation marks, with escapes: Python's repr. */
std::string Quoted(std::string_view text);

/*! \brief Strings with something between them. */
std::string Joined(const std::vector<std::string>& parts, std::string_view between = ", ");

/*! \brief A tuple: "(1, 3)", "(5,)", "()". */
std::string TupleText(const std::vector<std::string>& parts);
std::string ShapeText(const int64_t* shape, int ndim);

/*! \brief Text as one line that can be printed, shortened. */
std::string OneLine(std::string_view text, size_t limit = 300);

/*! \brief Text in UTF-8: bytes that are none, of a damaged file or of a path, as \x96. */
std::string InUtf8(std::string_view text);

/*! \brief A clause that names what the user may have meant, for the end of a message. */
std::string NearMatches(const std::string& name, std::vector<std::string> known);

}  // namespace tvm_edge
