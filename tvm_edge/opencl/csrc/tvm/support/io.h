// A byte stream and its typed reads and writes, for the wheel's own header src/runtime/metadata.h:
// it includes <tvm/support/io.h>, which the wheel leaves out. Same names, own implementation.
#ifndef TVM_SUPPORT_IO_H_
#define TVM_SUPPORT_IO_H_

#include <cstddef>

namespace tvm {
namespace support {

/*! \brief How a type is written; specialised in serializer.h and beside the types. */
template <typename T, typename = void>
struct Serializer;

/*! \brief A sequence of bytes to read from or append to. */
class Stream {
 public:
  virtual ~Stream() = default;
  /*! \brief Take up to `size` bytes; returns how many there were. */
  virtual size_t Read(void* data, size_t size) = 0;
  /*! \brief Append `size` bytes; returns how many were taken. */
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }
  /*! \brief Read a value; false if the bytes end before it does. */
  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }

  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) Write<T>(values[i]);
  }
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Read<T>(values + i)) return false;
    }
    return true;
  }
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_IO_H_
