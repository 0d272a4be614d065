#include "json_reader.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>

#include <limits>

#include "byte_source.h"
#include "text.h"

namespace tvm_edge {
namespace {
namespace json = tvm::ffi::json;

constexpr int kDeepest = 64;

void RefuseDeepNesting(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) throw Damage("the manifest is nested too deeply");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

JsonValue JsonValue::Parse(std::string_view text) {
  RefuseDeepNesting(text);
  tvm::ffi::String error;
  tvm::ffi::Any value = json::Parse(tvm::ffi::String(text.data(), text.size()), &error);
  if (error.size()) throw Damage(std::string(error));
  return JsonValue(std::move(value), "the manifest");
}

void JsonValue::Refuse(const char* expected) const { throw Damage(where_ + " is not " + expected); }

std::optional<JsonValue> JsonValue::Find(const char* key) const {
  auto object = value_.as<json::Object>();
  if (!object) Refuse("an object");
  auto found = object->Get(tvm::ffi::String(key));
  if (!found || *found == nullptr) return std::nullopt;
  return JsonValue(*found, where_ + "." + key);
}

JsonValue JsonValue::At(const char* key) const {
  auto found = Find(key);
  if (!found) throw Damage(where_ + " has no " + Quoted(key));
  return *found;
}

std::vector<JsonValue> JsonValue::Items() const {
  auto array = value_.as<json::Array>();
  if (!array) Refuse("a list");
  std::vector<JsonValue> items;
  for (size_t i = 0; i < array->size(); ++i) {
    items.push_back(JsonValue((*array)[i], where_ + "[" + std::to_string(i) + "]"));
  }
  return items;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::Fields() const {
  auto object = value_.as<json::Object>();
  if (!object) Refuse("an object");
  std::vector<std::pair<std::string, JsonValue>> fields;
  for (const auto& [key, value] : *object) {
    const std::string name = key.cast<tvm::ffi::String>();
    fields.emplace_back(name, JsonValue(value, where_ + "." + name));
  }
  return fields;
}

std::string JsonValue::String() const {
  auto text = value_.as<tvm::ffi::String>();
  if (!text) Refuse("text");
  return *text;
}

bool JsonValue::IsString() const { return value_.as<tvm::ffi::String>().has_value(); }

int64_t JsonValue::Integer() const {
  if (value_.type_index() != tvm::ffi::TypeIndex::kTVMFFIInt) Refuse("an integer");
  return value_.cast<int64_t>();
}

bool JsonValue::Boolean() const {
  if (value_.type_index() != tvm::ffi::TypeIndex::kTVMFFIBool) Refuse("true or false");
  return value_.cast<bool>();
}

std::vector<int> JsonValue::Positions() const {
  std::vector<int> positions;
  for (const JsonValue& item : Items()) {
    const int64_t position = item.Integer();
    if (position < -1 || position > std::numeric_limits<int>::max()) item.Refuse("a position");
    positions.push_back(static_cast<int>(position));
  }
  return positions;
}

std::vector<std::string> JsonValue::Strings() const {
  std::vector<std::string> strings;
  for (const JsonValue& item : Items()) strings.push_back(item.String());
  return strings;
}

}  // namespace tvm_edge
