// TVM's binary form of numbers, strings, arrays and maps: little-endian, lengths as 64-bit counts.
// Stands in for the header that the wheel leaves out; see io.h.
#ifndef TVM_SUPPORT_SERIALIZER_H_
#define TVM_SUPPORT_SERIALIZER_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace tvm {
namespace support {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "TVM has no wheel for big-endian CPUs");

template <typename T>
struct Serializer<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>> {
  static void Write(Stream* stream, const T& value) {
    stream->Write(static_cast<const void*>(&value), sizeof(T));
  }
  static bool Read(Stream* stream, T* value) {
    return stream->Read(static_cast<void*>(value), sizeof(T)) == sizeof(T);
  }
};

template <>
struct Serializer<DLDataType> {
  static void Write(Stream* stream, const DLDataType& type) {
    stream->Write<uint8_t>(type.code);
    stream->Write<uint8_t>(type.bits);
    stream->Write<uint16_t>(type.lanes);
  }
  static bool Read(Stream* stream, DLDataType* type) {
    return stream->Read(&type->code) && stream->Read(&type->bits) && stream->Read(&type->lanes);
  }
};

template <>
struct Serializer<DLDevice> {
  static void Write(Stream* stream, const DLDevice& device) {
    stream->Write<int32_t>(device.device_type);
    stream->Write<int32_t>(device.device_id);
  }
  static bool Read(Stream* stream, DLDevice* device) {
    return stream->Read(&device->device_type) && stream->Read(&device->device_id);
  }
};

/*! \brief Strings and byte strings: a count and the bytes. */
template <typename T>
struct BytesSerializer {
  static void Write(Stream* stream, const T& value) {
    stream->Write<uint64_t>(value.size());
    stream->Write(static_cast<const void*>(value.data()), value.size());
  }
  static bool Read(Stream* stream, T* value) {
    uint64_t size = 0;
    if (!stream->Read(&size)) return false;
    // In pieces: a damaged count must end the stream, not ask for exabytes.
    std::string bytes;
    constexpr uint64_t kPiece = 1 << 20;
    while (bytes.size() < size) {
      const size_t before = bytes.size();
      const size_t piece = static_cast<size_t>(std::min(kPiece, size - before));
      bytes.resize(before + piece);
      if (stream->Read(static_cast<void*>(&bytes[before]), piece) != piece) return false;
    }
    *value = T(std::move(bytes));
    return true;
  }
};
template <>
struct Serializer<std::string> : BytesSerializer<std::string> {};
template <>
struct Serializer<ffi::String> : BytesSerializer<ffi::String> {};
template <>
struct Serializer<ffi::Bytes> : BytesSerializer<ffi::Bytes> {};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static void Write(Stream* stream, const ffi::Array<T>& array) {
    stream->Write<uint64_t>(array.size());
    for (const T& item : array) stream->Write<T>(item);
  }
  static bool Read(Stream* stream, ffi::Array<T>* array) {
    uint64_t size = 0;
    if (!stream->Read(&size)) return false;
    ffi::Array<T> items;
    for (uint64_t i = 0; i < size; ++i) {
      T item{};
      if (!stream->Read(&item)) return false;
      items.push_back(std::move(item));
    }
    *array = std::move(items);
    return true;
  }
};

template <typename K, typename V>
struct Serializer<ffi::Map<K, V>> {
  static void Write(Stream* stream, const ffi::Map<K, V>& map) {
    stream->Write<uint64_t>(map.size());
    for (const auto& [key, value] : map) {
      stream->Write<K>(key);
      stream->Write<V>(value);
    }
  }
  static bool Read(Stream* stream, ffi::Map<K, V>* map) {
    uint64_t size = 0;
    if (!stream->Read(&size)) return false;
    ffi::Map<K, V> items;
    for (uint64_t i = 0; i < size; ++i) {
      K key{};
      V value{};
      if (!stream->Read(&key) || !stream->Read(&value)) return false;
      items.Set(std::move(key), std::move(value));
    }
    *map = std::move(items);
    return true;
  }
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_SERIALIZER_H_
