#include "text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <utility>

namespace tvm_edge {
namespace {

/*! \brief Characters in the longest common blocks, recursively (Ratcliff and Obershelp, 1988). */
size_t MatchingCharacters(std::string_view a, std::string_view b) {
  size_t best = 0, at_a = 0, at_b = 0;
  std::vector<size_t> before(b.size() + 1), now(b.size() + 1);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      now[j + 1] = a[i] == b[j] ? before[j] + 1 : 0;
      if (now[j + 1] > best) {
        best = now[j + 1];
        at_a = i + 1 - best;
        at_b = j + 1 - best;
      }
    }
    std::swap(before, now);
  }
  if (best == 0) return 0;
  return best + MatchingCharacters(a.substr(0, at_a), b.substr(0, at_b)) +
         MatchingCharacters(a.substr(at_a + best), b.substr(at_b + best));
}

/*! \brief At most three names that resemble one, the most similar first. */
std::vector<std::string> CloseMatches(const std::string& name,
                                      const std::vector<std::string>& known) {
  std::vector<std::pair<double, std::string>> found;
  for (const std::string& candidate : known) {
    const size_t length = name.size() + candidate.size();
    const double ratio =
        length == 0 ? 1 : 2.0 * static_cast<double>(MatchingCharacters(candidate, name)) / length;
    if (ratio >= 0.5) found.emplace_back(ratio, candidate);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  std::vector<std::string> names;
  for (const auto& [ratio, candidate] : found) {
    if (names.size() < 3) names.push_back(candidate);
  }
  return names;
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

constexpr size_t kMostCompared = 256;  // characters of a name that somebody passed

}  // namespace

std::string Quoted(std::string_view text) {
  const bool single = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char mark = single ? '"' : '\'';
  std::string made(1, mark);
  for (char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == mark || c == '\\') {
      made += {'\\', c};
    } else if (c == '\n') {
      made += "\\n";
    } else if (c == '\r') {
      made += "\\r";
    } else if (c == '\t') {
      made += "\\t";
    } else if (code < 0x20 || code == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", code);
      made += escaped;
    } else {
      made += c;
    }
  }
  return made + mark;
}

std::string Joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string made;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i) made += between;
    made += parts[i];
  }
  return made;
}

std::string TupleText(const std::vector<std::string>& parts) {
  return "(" + Joined(parts) + (parts.size() == 1 ? ",)" : ")");
}

std::string ShapeText(const int64_t* shape, int ndim) {
  std::vector<std::string> parts;
  for (int i = 0; i < ndim; ++i) parts.push_back(std::to_string(shape[i]));
  return TupleText(parts);
}

std::string OneLine(std::string_view text, size_t limit) {
  std::string made;
  for (char c : text) {
    const bool space = std::isspace(static_cast<unsigned char>(c));
    if (space && (made.empty() || made.back() == ' ')) continue;
    made += space ? ' ' : c;
  }
  while (!made.empty() && made.back() == ' ') made.pop_back();
  if (made.size() <= limit) return made;
  size_t end = limit - 1;
  while (end > 0 && (made[end] & 0xc0) == 0x80) --end;  // not within a character of UTF-8
  return made.substr(0, end) + "…";
}

std::string InUtf8(std::string_view text) {
  std::string made;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = first < 0x80   ? 1
                          : first < 0xc2 ? 0
                          : first < 0xe0 ? 2
                          : first < 0xf0 ? 3
                          : first < 0xf5 ? 4
                                         : 0;
    bool whole = length > 0 && i + length <= text.size();
    for (size_t k = 1; whole && k < length; ++k) whole = (text[i + k] & 0xc0) == 0x80;
    if (whole && length > 2) {  // no second way to write a number, no surrogates, no number beyond
      const auto second = static_cast<unsigned char>(text[i + 1]);
      whole = !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second > 0x9f) &&
              !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second > 0x8f);
    }
    if (whole) {
      made += text.substr(i, length);
      i += length;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", first);
      made += escaped;
      ++i;
    }
  }
  return made;
}

std::string NearMatches(const std::string& full_name, std::vector<std::string> known) {
  const std::string name = full_name.substr(0, kMostCompared);
  std::sort(known.begin(), known.end());
  std::vector<std::string> close = CloseMatches(name, known);
  if (close.empty()) {  // perhaps only the case differs
    std::map<std::string, std::string> by_lower;
    std::vector<std::string> lowered;
    for (const std::string& candidate : known) by_lower[Lower(candidate)] = candidate;
    for (const auto& [lower, candidate] : by_lower) lowered.push_back(lower);
    for (const std::string& lower : CloseMatches(Lower(name), lowered)) {
      close.push_back(by_lower[lower]);
    }
  }
  if (!close.empty()) {
    for (std::string& each : close) each = Quoted(each);
    return "did you mean " + Joined(close, " or ") + "?";
  }
  if (known.empty()) return "none are known";
  if (known.size() <= 20) return "known: " + Joined(known);
  const std::string count = std::to_string(known.size());
  known.resize(20);
  return "known: " + Joined(known) + ", … (" + count + " in all)";
}

}  // namespace tvm_edge
