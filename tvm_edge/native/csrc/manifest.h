// Signature of a model: what can be said of it without running it, as far as running needs it.
#pragma once

#include <tvm/ffi/dtype.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "json_reader.h"

namespace tvm_edge {

/*! \brief A dimension that is open: the data of a run say how long it is. */
struct Dim {
  std::string name;
  int64_t min = 1;
  int64_t max = -1;  // -1: any
  int64_t multiple = 1;
  int64_t typical = -1;

  bool Takes(int64_t length) const;
  /*! \brief The lengths in words: "32 to 2048, multiples of 8". */
  std::string RangeText() const;
};

/*! \brief A length of a shape, or the name of what the run tells. */
struct Length {
  int64_t length = -1;  // -1: open
  std::string name;

  std::string Text() const { return length < 0 ? name : std::to_string(length); }
};

/*! \brief Name, shape and type of an input or output. */
struct TensorSpec {
  std::string name;
  std::vector<Length> shape;
  std::string dtype_name;
  DLDataType dtype;
  DLDataType stored;  // what the code has it in: another type with as many bytes, or the same
  std::optional<int64_t> offsets_into;
  std::vector<Dim> dims;

  bool IsFixed() const { return dims.empty(); }
  bool IsFixed(const int64_t* wanted, int ndim) const;
  const Dim& DimOf(const std::string& open) const;
  std::string Text() const;       // "image: float32[1, 3]"
  std::string ShapeText() const;  // "(1, 3, h)"
  /*! \brief A shape of an input whose open dimensions are as long as they typically are. */
  std::vector<int64_t> TypicalShape() const;
};

/*! \brief One of the models of an artifact that has several: positions of its tensors. */
struct ModelPart {
  std::string name;
  std::vector<int> inputs, outputs;
};

/*! \brief In place of the device of a weight: it stays where it is, and the code asks for it. */
constexpr int kStreamed = -1;

/*! \brief Devices of a model; inputs and weights name theirs by position in `kinds`. */
struct DevicePlan {
  std::vector<std::string> kinds;
  std::vector<int> inputs, weights;
};

struct Signature {
  std::string model;
  std::vector<TensorSpec> inputs, outputs;
  std::vector<ModelPart> models;
  DevicePlan devices;
  std::string kind;  // of the target: "llvm", "opencl", "cuda"
  std::string architecture;
  std::vector<std::string> features;
  int64_t largest_part = 0;  // bytes of the largest streamed weight that is copied to a device
  int kept_shapes = 0;       // shapes whose memory is kept; 0 where runs do not differ in shapes

  /*! \brief Read a manifest, or as much of one as says this. \throws Damage */
  static Signature Read(const JsonValue& manifest);
};

/*! \brief A type by its name: "float32". \throws Damage */
DLDataType TypeOf(const std::string& name);
int64_t ItemBytes(DLDataType type);

constexpr int kMostKeptShapes = 32;  // a camera has one or two; a page of text some dozen widths

}  // namespace tvm_edge
