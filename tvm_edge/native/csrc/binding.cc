#include "binding.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "entry.h"
#include "error.h"
#include "text.h"

namespace tvm_edge {
namespace {

using Lengths = std::map<std::string, int64_t>;  // of open dimensions, in inputs before

std::vector<std::string> NamesOf(const std::vector<TensorSpec>& specs,
                                 const std::vector<int>& positions) {
  std::vector<std::string> names;
  for (int position : positions) names.push_back(specs[position].name);
  return names;
}

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/*! \brief Say what is wrong with a shape; add its open dimensions to those that are known. */
std::string ShapeProblem(const TensorSpec& spec, ffi::ShapeView shape, Lengths* lengths) {
  bool fits = shape.size() == spec.shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = spec.shape[i].length < 0 || spec.shape[i].length == shape[i];
  }
  if (!fits) return "the model takes " + spec.ShapeText();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (spec.shape[i].length >= 0) continue;
    const std::string& name = spec.shape[i].name;
    const int64_t length = shape[i];
    const int64_t known = lengths->emplace(name, length).first->second;
    if (known != length) {
      return Quoted(name) + " is " + std::to_string(length) + " here and " +
             std::to_string(known) + " elsewhere; one name is one length";
    }
    const Dim& dim = spec.DimOf(name);
    if (!dim.Takes(length)) return Quoted(name) + " takes " + dim.RangeText();
  }
  return "";
}

/*! \brief The shape as Python writes it: names of open dimensions in quotation marks. */
std::string ExpectedShape(const TensorSpec& spec) {
  std::vector<std::string> parts;
  for (const Length& length : spec.shape) {
    parts.push_back(length.length < 0 ? Quoted(length.name) : length.Text());
  }
  return TupleText(parts);
}

void CheckShape(const TensorSpec& spec, ffi::ShapeView shape, Lengths* lengths) {
  if (spec.IsFixed(shape.data(), static_cast<int>(shape.size()))) return;
  const std::string problem = ShapeProblem(spec, shape, lengths);
  if (problem.empty()) return;
  const std::string text = ShapeText(shape.data(), static_cast<int>(shape.size()));
  ThrowInput("the input " + Quoted(spec.name) + " has the shape " + text + ", and " + problem +
                 "; resize the data, or compile with input_shapes={" + Quoted(spec.name) + ": " +
                 text + "}",
             {spec.name, ExpectedShape(spec), text});
}

template <typename T>
std::string OffsetsProblemOf(const T* offsets, int64_t count, int64_t length) {
  const auto number = [&](int64_t at) {
    return "number " + std::to_string(at) + ", " + std::to_string(offsets[at]);
  };
  for (int64_t i = 0; i < count; ++i) {
    if (offsets[i] < 0 || static_cast<int64_t>(offsets[i]) > length) {
      return number(i) + ", lies outside of the " + std::to_string(length) + " elements";
    }
  }
  for (int64_t i = 1; i < count; ++i) {
    if (offsets[i] < offsets[i - 1]) {
      return number(i) + ", is less than the " + std::to_string(offsets[i - 1]) + " before it";
    }
  }
  return "";
}

void CheckOffsets(const TensorSpec& spec, const Tensor& value) {
  const Tensor host =
      IsHostMemory(value->device) ? value : HostCopy(*value.operator->());
  const char* data = DataOf(*host.operator->());
  const int64_t count = host->ndim == 0 ? 1 : static_cast<int64_t>(BytesOf(host)) /
                                                   ItemBytes(host->dtype);
  std::string problem;
  if (host->dtype.bits == 64) {
    problem = OffsetsProblemOf(reinterpret_cast<const int64_t*>(data), count, *spec.offsets_into);
  } else if (host->dtype.bits == 32) {
    problem = OffsetsProblemOf(reinterpret_cast<const int32_t*>(data), count, *spec.offsets_into);
  }
  if (problem.empty()) return;
  ThrowInput("the input " + Quoted(spec.name) + " says where segments begin, and " + problem +
                 "; pass their ascending offsets, one more than there are segments",
             {spec.name, "ascending offsets from 0 to " + std::to_string(*spec.offsets_into),
              problem});
}

[[noreturn]] void RefuseType(const TensorSpec& spec, const std::string& got) {
  ThrowInput("the input " + Quoted(spec.name) + " has the type " + got +
                 ", and the model takes " + spec.dtype_name + "; convert it (.astype(" +
                 Quoted(spec.dtype_name) + ") in NumPy)",
             {spec.name, spec.dtype_name, got});
}

bool SameType(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

}  // namespace

Choice EveryModel(const Signature& signature) {
  Choice choice;
  choice.inputs.resize(signature.inputs.size());
  choice.outputs.resize(signature.outputs.size());
  std::iota(choice.inputs.begin(), choice.inputs.end(), 0);
  std::iota(choice.outputs.begin(), choice.outputs.end(), 0);
  choice.entries.push_back({kMain, choice.inputs, choice.outputs});
  return choice;
}

Choice ChooseModels(const Signature& signature, const std::vector<std::string>& names) {
  std::vector<std::string> known, quoted, wanted;
  for (const ModelPart& part : signature.models) {
    known.push_back(part.name);
    quoted.push_back(Quoted(part.name));
  }
  for (const std::string& name : names) wanted.push_back(Quoted(name));
  if (known.empty()) {
    ThrowInput(
        "this artifact has one model, without a name; leave models out, or compile a dict of "
        "models",
        {"models", "None", "[" + Joined(wanted) + "]"});
  }
  for (const std::string& name : names) {
    if (Has(known, name)) continue;
    ThrowInput("the artifact has no model " + Quoted(name) + "; " + NearMatches(name, known),
               {"models", Joined(known), Quoted(name)});
  }
  if (names.empty()) {
    ThrowInput("models is empty, and nothing would run; name some of " + Joined(quoted) +
                   ", or leave it out for all",
               {"models", Joined(known), "[]"});
  }
  Choice choice;
  for (size_t number = 0; number < known.size(); ++number) {
    if (!Has(names, known[number])) continue;
    const ModelPart& part = signature.models[number];
    choice.numbers.push_back(static_cast<int>(number));
    choice.entries.push_back({FunctionOf(static_cast<int>(number)), part.inputs, part.outputs});
    choice.inputs.insert(choice.inputs.end(), part.inputs.begin(), part.inputs.end());
    choice.outputs.insert(choice.outputs.end(), part.outputs.begin(), part.outputs.end());
  }
  return choice.numbers.size() == known.size() ? EveryModel(signature) : choice;
}

bool IsIdle(const Signature& signature, const Choice& choice, const std::string& input) {
  if (choice.numbers.empty()) return false;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    if (signature.inputs[i].name != input) continue;
    return !std::count(choice.inputs.begin(), choice.inputs.end(), static_cast<int>(i));
  }
  return false;
}

void RefuseNames(const Signature& signature, const Choice& choice,
                 const std::vector<std::string>& given) {
  std::vector<std::string> known = NamesOf(signature.inputs, choice.inputs);
  std::sort(known.begin(), known.end());
  for (const std::string& name : given) {
    if (Has(known, name)) continue;
    ThrowInput("the model has no input " + Quoted(name) + "; " + NearMatches(name, known),
               {name, Joined(known), name});
  }
  for (int position : choice.inputs) {
    const TensorSpec& spec = signature.inputs[position];
    if (Has(given, spec.name)) continue;
    ThrowInput("the input " + spec.Text() + " is missing; add " + Quoted(spec.name) +
                   " to the dict",
               {spec.name, spec.Text(), "nothing"});
  }
  ThrowInput("an input is given twice; give each once", {"inputs", Joined(known), Joined(given)});
}

void RefuseOutput(const Signature& signature, const Choice& choice, const std::string& name) {
  const auto names = NamesOf(signature.outputs, choice.outputs);
  const bool exists =
      std::any_of(signature.outputs.begin(), signature.outputs.end(),
                  [&](const TensorSpec& spec) { return spec.name == name; });
  if (exists) {
    const std::string model = name.substr(0, name.find('/'));
    ThrowInput("the output " + Quoted(name) + " is of the model " + Quoted(model) +
                   ", which does not run; add " + Quoted(model) +
                   " to models, or leave the output out",
               {name, Joined(names), name});
  }
  ThrowInput("the model has no output " + Quoted(name) + "; " + NearMatches(name, names),
             {name, Joined(names), name});
}

void CheckInput(const TensorSpec& spec, const std::string& dtype, ffi::ShapeView shape) {
  if (dtype != spec.dtype_name) RefuseType(spec, dtype);
  Lengths lengths;
  CheckShape(spec, shape, &lengths);
}

void Bind(const Signature& signature, const Choice& choice, std::vector<Tensor>* inputs) {
  Lengths lengths;
  for (size_t i = 0; i < choice.inputs.size(); ++i) {
    const TensorSpec& spec = signature.inputs[choice.inputs[i]];
    const DLTensor& tensor = *(*inputs)[i].operator->();
    if (!SameType(tensor.dtype, spec.dtype)) {
      RefuseType(spec, ffi::DLDataTypeToString(tensor.dtype));
    }
    CheckShape(spec, ShapeOf(tensor), &lengths);
  }
  for (size_t i = 0; i < choice.inputs.size(); ++i) {
    const TensorSpec& spec = signature.inputs[choice.inputs[i]];
    Tensor& value = (*inputs)[i];
    if (spec.offsets_into) CheckOffsets(spec, value);
    if (!SameType(spec.stored, spec.dtype)) {
      // CreateView would count elements of four bits as half a byte: they have one each.
      const DLTensor& given = *value.operator->();
      value = Over(DataOf(given), ShapeOf(given), spec.stored, given.device,
                   std::make_shared<Tensor>(value));
    }
  }
}

}  // namespace tvm_edge
