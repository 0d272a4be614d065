// Values of a JSON document, of the types that their reader expects.
#pragma once

#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tvm_edge {

class JsonValue {
 public:
  /*!
   * \brief Parse a document, by TVM FFI's parser.
   * \throws Damage It is none, or nested more deeply than the parser's recursion may go.
   */
  static JsonValue Parse(std::string_view text);

  // Each throws Damage where the value is of another type, and names it.
  JsonValue At(const char* key) const;
  std::optional<JsonValue> Find(const char* key) const;  // none: absent or null
  std::vector<JsonValue> Items() const;
  std::vector<std::pair<std::string, JsonValue>> Fields() const;
  std::string String() const;
  int64_t Integer() const;
  bool Boolean() const;
  std::vector<int> Positions() const;
  std::vector<std::string> Strings() const;

  bool IsString() const;

 private:
  JsonValue(tvm::ffi::Any value, std::string where)
      : value_(std::move(value)), where_(std::move(where)) {}
  [[noreturn]] void Refuse(const char* expected) const;

  tvm::ffi::Any value_;
  std::string where_;
};

}  // namespace tvm_edge
