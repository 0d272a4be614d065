#include "manifest.h"

#include <algorithm>
#include <set>

#include "byte_source.h"
#include "text.h"

namespace tvm_edge {
namespace {

const std::set<std::string>& Kinds() {
  static const std::set<std::string> kinds{"llvm", "opencl", "cuda"};
  return kinds;
}

std::string ReadKind(const JsonValue& value) {
  const std::string kind = value.String();
  if (!Kinds().count(kind)) throw Damage(Quoted(kind) + " is no kind of device");
  return kind;
}

int64_t ReadLength(const JsonValue& value) {
  const int64_t length = value.Integer();
  if (length < 0) throw Damage(std::to_string(length) + " is no length");
  return length;
}

Dim ReadDim(const JsonValue& value) {
  Dim dim;
  dim.name = value.At("name").String();
  if (auto min = value.Find("min")) dim.min = ReadLength(*min);
  if (auto max = value.Find("max")) dim.max = ReadLength(*max);
  if (auto multiple = value.Find("multiple")) dim.multiple = ReadLength(*multiple);
  if (auto typical = value.Find("typical")) dim.typical = ReadLength(*typical);
  const bool empty = dim.multiple == 0 ||
                     (dim.max >= 0 && dim.max / dim.multiple * dim.multiple < dim.min) ||
                     (dim.typical >= 0 && !dim.Takes(dim.typical));
  if (dim.name.empty() || empty) throw Damage("the dimension " + Quoted(dim.name) + " has no length");
  return dim;
}

/*! \brief Refuse what no memory holds. */
void CheckSize(const TensorSpec& spec) {
  int64_t nbytes = ItemBytes(spec.dtype);
  for (const Length& length : spec.shape) {
    if (length.length >= 0 && __builtin_mul_overflow(nbytes, length.length, &nbytes)) {
      throw Damage(spec.Text() + " is no tensor");
    }
  }
  if (ItemBytes(spec.stored) != ItemBytes(spec.dtype)) {
    throw Damage(spec.Text() + " is stored as another size");
  }
}

TensorSpec ReadSpec(const JsonValue& value) {
  TensorSpec spec;
  spec.name = value.At("name").String();
  spec.dtype_name = value.At("dtype").String();
  spec.dtype = TypeOf(spec.dtype_name);
  for (const JsonValue& item : value.At("shape").Items()) {
    if (item.IsString()) {
      spec.shape.push_back({-1, item.String()});
    } else {
      spec.shape.push_back({ReadLength(item), ""});
    }
  }
  if (auto offsets = value.Find("offsets_into")) spec.offsets_into = ReadLength(*offsets);
  auto stored = value.Find("stored_as");
  spec.stored = stored ? TypeOf(stored->String()) : spec.dtype;
  if (auto dims = value.Find("dims")) {
    for (const JsonValue& dim : dims->Items()) spec.dims.push_back(ReadDim(dim));
  }
  CheckSize(spec);
  return spec;
}

std::vector<TensorSpec> ReadSpecs(const JsonValue& value) {
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (const JsonValue& item : value.Items()) {
    specs.push_back(ReadSpec(item));
    if (!names.insert(specs.back().name).second) {
      throw Damage("two inputs or two outputs have one name");
    }
  }
  return specs;
}

void CheckDims(const TensorSpec& spec) {
  std::set<std::string> open, said;
  for (const Length& length : spec.shape) {
    if (length.length < 0) open.insert(length.name);
  }
  for (const Dim& dim : spec.dims) said.insert(dim.name);
  if (open != said) {
    throw Damage("the shape of the input " + Quoted(spec.name) + " has other open dimensions");
  }
}

void CheckPlan(const DevicePlan& plan, size_t inputs) {
  const auto fits = [&plan](int device) {
    return device >= 0 && static_cast<size_t>(device) < plan.kinds.size();
  };
  const bool inputs_fit =
      plan.inputs.size() == inputs && std::all_of(plan.inputs.begin(), plan.inputs.end(), fits);
  const bool weights_fit = std::all_of(plan.weights.begin(), plan.weights.end(),
                                       [&](int d) { return d == kStreamed || fits(d); });
  if (plan.kinds.empty() || !inputs_fit || !weights_fit) {
    throw Damage("the plan of devices does not fit the inputs and weights");
  }
}

/*! \brief Refuse models that are not made of the inputs and outputs, one's after the other's. */
void CheckModels(const Signature& signature) {
  if (signature.models.empty()) return;
  std::set<std::string> names;
  for (const ModelPart& part : signature.models) {
    if (!names.insert(part.name).second) throw Damage("two models have one name");
  }
  for (bool input : {true, false}) {
    const auto& specs = input ? signature.inputs : signature.outputs;
    size_t next = 0;
    for (const ModelPart& part : signature.models) {
      for (int position : input ? part.inputs : part.outputs) {
        if (position != static_cast<int>(next) || next >= specs.size()) {
          throw Damage("the models do not share out the inputs and outputs");
        }
        if (specs[next].name.rfind(part.name + "/", 0) != 0) {
          throw Damage(Quoted(specs[next].name) + " is not the model " + Quoted(part.name) + "'s");
        }
        ++next;
      }
    }
    if (next != specs.size()) throw Damage("the models do not share out the inputs and outputs");
  }
}

/*! \brief Shapes whose memory is kept; a budget may have room for those of one alone. */
int KeptShapes(const std::vector<TensorSpec>& inputs, const JsonValue& report) {
  const auto open = [](const TensorSpec& spec) { return !spec.dims.empty(); };
  if (std::none_of(inputs.begin(), inputs.end(), open)) return 0;
  auto memory = report.Find("memory");
  auto budget = memory ? memory->Find("budget") : std::nullopt;
  if (!budget) return kMostKeptShapes;
  const int64_t spare = std::max<int64_t>(budget->Integer() - memory->At("peak").Integer(), 0);
  const int64_t one = std::max<int64_t>(memory->At("inputs_outputs").Integer(), 1);
  return 1 + static_cast<int>(std::min<int64_t>(spare / one, kMostKeptShapes - 1));
}

int64_t LargestPart(const JsonValue& report) {
  int64_t largest = 0;
  auto splits = report.Find("splits");
  if (!splits) return largest;
  for (const JsonValue& split : splits->Items()) {
    if (split.At("device").String() == "llvm") continue;
    largest = std::max(largest, ReadLength(split.At("part_bytes")));
  }
  return largest;
}

}  // namespace

bool Dim::Takes(int64_t length) const {
  return length >= min && (max < 0 || length <= max) && length % multiple == 0;
}

std::string Dim::RangeText() const {
  const std::string whole = max < 0 ? std::to_string(min) + " or more"
                                    : std::to_string(min) + " to " + std::to_string(max);
  return multiple == 1 ? whole : whole + ", multiples of " + std::to_string(multiple);
}

bool TensorSpec::IsFixed(const int64_t* wanted, int ndim) const {
  if (static_cast<size_t>(ndim) != shape.size()) return false;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i].length != wanted[i] || wanted[i] < 0) return false;
  }
  return true;
}

const Dim& TensorSpec::DimOf(const std::string& open) const {
  return *std::find_if(dims.begin(), dims.end(), [&](const Dim& dim) { return dim.name == open; });
}

std::string TensorSpec::Text() const {
  std::vector<std::string> parts;
  for (const Length& length : shape) parts.push_back(length.Text());
  return name + ": " + dtype_name + "[" + Joined(parts) + "]";
}

std::string TensorSpec::ShapeText() const {
  std::vector<std::string> parts;
  for (const Length& length : shape) parts.push_back(length.Text());
  return TupleText(parts);
}

std::vector<int64_t> TensorSpec::TypicalShape() const {
  std::vector<int64_t> made;
  for (const Length& length : shape) {
    if (length.length >= 0) {
      made.push_back(length.length);
    } else {
      const Dim& dim = DimOf(length.name);
      made.push_back(dim.typical > 0 ? dim.typical : dim.min);
    }
  }
  return made;
}

DLDataType TypeOf(const std::string& name) {
  static const std::set<std::string> known{
      "bool",     "int8",     "int16",   "int32",   "int64",   "uint8",
      "uint16",   "uint32",   "uint64",  "float16", "float32", "float64",
      "bfloat16", "int2",     "int4",    "uint2",   "uint4"};
  const bool small_float = name.size() > 7 && name.rfind("float", 0) == 0 && name[6] == '_' &&
                           (name[5] == '4' || name[5] == '6' || name[5] == '8');
  if (!known.count(name) && !small_float) {
    throw Damage(Quoted(name) + " is not the type of a tensor");
  }
  try {
    return tvm::ffi::StringToDLDataType(name);
  } catch (const tvm::ffi::Error&) {
    throw Damage(Quoted(name) + " is not the type of a tensor here");
  }
}

int64_t ItemBytes(DLDataType type) { return (int64_t{type.bits} * type.lanes + 7) / 8; }

Signature Signature::Read(const JsonValue& manifest) {
  Signature made;
  made.inputs = ReadSpecs(manifest.At("inputs"));
  made.outputs = ReadSpecs(manifest.At("outputs"));
  if (made.outputs.empty()) throw Damage("there are no outputs");
  for (const TensorSpec& spec : made.inputs) CheckDims(spec);
  const JsonValue devices = manifest.At("devices");
  for (const JsonValue& kind : devices.At("kinds").Items()) {
    made.devices.kinds.push_back(ReadKind(kind));
  }
  made.devices.inputs = devices.At("inputs").Positions();
  made.devices.weights = devices.At("weights").Positions();
  CheckPlan(made.devices, made.inputs.size());
  const JsonValue target = manifest.At("target");
  made.kind = ReadKind(target.At("kind"));
  made.architecture = target.At("architecture").String();
  made.features = target.At("features").Strings();
  if (auto models = manifest.Find("models")) {  // artifacts of earlier versions do not have them
    for (const JsonValue& part : models->Items()) {
      made.models.push_back({part.At("name").String(), part.At("inputs").Positions(),
                             part.At("outputs").Positions()});
    }
  }
  CheckModels(made);
  const JsonValue report = manifest.At("report");
  made.model = report.At("model").String();
  made.largest_part = LargestPart(report);
  made.kept_shapes = KeptShapes(made.inputs, report);
  return made;
}

}  // namespace tvm_edge
