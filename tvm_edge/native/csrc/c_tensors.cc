#include "c_tensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "error.h"
#include "text.h"

namespace tvm_edge {
namespace {

[[noreturn]] void RefuseTensor(const std::string& name, const std::string& problem,
                               const std::string& expected, const std::string& got) {
  ThrowInput("the input " + Quoted(name) + " " + problem, {name, expected, got});
}

DLDevice DeviceOf(const tvm_edge_tensor& tensor) {
  if (tensor.device_type == 0) return kCpu;
  return {static_cast<DLDeviceType>(tensor.device_type), tensor.device_id};
}

/*! \brief Refuse memory for an output on a device that the model does not run on. */
void RefuseDevice(const Signature& signature, const TensorSpec& spec,
                  const tvm_edge_tensor& output) {
  const DLDevice device = DeviceOf(output);
  if (IsHostMemory(device)) return;
  for (const std::string& kind : signature.devices.kinds) {
    if (DeviceTypeOf(kind) == device.device_type) return;
  }
  ThrowInput("the memory for the output " + Quoted(spec.name) + " is on a device of the type " +
                 std::to_string(output.device_type) + ", and the model runs on " +
                 Joined(signature.devices.kinds) + "; pass memory of the host, or leave data null",
             {spec.name, Joined(signature.devices.kinds), std::to_string(output.device_type)});
}

/*! \brief An input over the caller's memory. */
Tensor InputOf(const TensorSpec& spec, const std::string& kind, const tvm_edge_tensor& given) {
  if (given.ndim < 0 || given.ndim > TVM_EDGE_MAX_DIMS) {
    RefuseTensor(spec.name, "has " + std::to_string(given.ndim) + " dimensions; it may have at "
                 "most " + std::to_string(TVM_EDGE_MAX_DIMS),
                 "0 to " + std::to_string(TVM_EDGE_MAX_DIMS), std::to_string(given.ndim));
  }
  const DLDataType dtype{given.dtype.code, given.dtype.bits, given.dtype.lanes};
  const std::string shape = ShapeText(given.shape, given.ndim);
  uint64_t nbytes = static_cast<uint64_t>(ItemBytes(dtype));
  for (int i = 0; i < given.ndim; ++i) {
    if (given.shape[i] < 0 || __builtin_mul_overflow(nbytes, given.shape[i], &nbytes)) {
      RefuseTensor(spec.name, "has the shape " + shape + ", which no memory has", spec.ShapeText(),
                   shape);
    }
  }
  if (nbytes != given.nbytes) {
    RefuseTensor(spec.name, "has " + std::to_string(given.nbytes) + " bytes, and its shape " +
                 shape + " takes " + std::to_string(nbytes) + "; set nbytes, shape and dtype",
                 std::to_string(nbytes), std::to_string(given.nbytes));
  }
  if (given.data == nullptr && nbytes) {
    RefuseTensor(spec.name, "has no data; pass a pointer to its elements", "a pointer", "null");
  }
  const DLDevice device = DeviceOf(given);
  if (!IsHostMemory(device) && device.device_type != DeviceTypeOf(kind)) {
    RefuseTensor(spec.name, "is on a device of the type " + std::to_string(given.device_type) +
                 ", and the model takes it from host memory or from " + kind,
                 kind, std::to_string(given.device_type));
  }
  if (!IsHostMemory(device)) {
    return Over(given.data, ffi::ShapeView(given.shape, given.ndim), dtype, device, nullptr);
  }
  return Over(given.data, ffi::ShapeView(given.shape, given.ndim), dtype, kCpu, nullptr);
}

std::vector<std::string> NamesOf(const tvm_edge_tensor* tensors, size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.emplace_back(tensors[i].name ? tensors[i].name : "");
  return names;
}

}  // namespace

tvm_edge_spec SpecOf(const TensorSpec& spec) {
  tvm_edge_spec made{};
  if (spec.shape.size() > TVM_EDGE_MAX_DIMS) {
    ThrowInput(Quoted(spec.name) + " has more dimensions than tvm_edge_spec describes",
               {spec.name, "", ""});
  }
  made.name = spec.name.c_str();
  made.dtype = {spec.dtype.code, spec.dtype.bits, spec.dtype.lanes};
  made.ndim = static_cast<int32_t>(spec.shape.size());
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    const Length& length = spec.shape[i];
    tvm_edge_dim& dim = made.dims[i];
    dim = {length.length, nullptr, length.length, length.length, 1};
    if (length.length >= 0) continue;
    dim = {-1, length.name.c_str(), 0, -1, 1};
    for (const Dim& open : spec.dims) {
      if (open.name == length.name) dim = {-1, length.name.c_str(), open.min, open.max, open.multiple};
    }
  }
  return made;
}

std::vector<Tensor> InputsOf(const Signature& signature, const Choice& choice,
                             const tvm_edge_tensor* inputs, size_t count) {
  std::vector<const tvm_edge_tensor*> given;
  for (size_t i = 0; i < count; ++i) {
    if (inputs[i].name == nullptr || !IsIdle(signature, choice, inputs[i].name)) {
      given.push_back(&inputs[i]);
    }
  }
  std::vector<Tensor> bound;
  bound.reserve(given.size());
  for (int position : choice.inputs) {
    const TensorSpec& spec = signature.inputs[position];
    const auto found = std::find_if(given.begin(), given.end(), [&](const tvm_edge_tensor* each) {
      return each->name != nullptr && spec.name == each->name;
    });
    if (found == given.end() || given.size() != choice.inputs.size()) {
      RefuseNames(signature, choice, NamesOf(inputs, count));
    }
    bound.push_back(
        InputOf(spec, signature.devices.kinds[signature.devices.inputs[position]], **found));
  }
  if (given.size() != choice.inputs.size()) {
    RefuseNames(signature, choice, NamesOf(inputs, count));
  }
  return bound;
}

std::vector<size_t> WantedOutputs(const Signature& signature, const Choice& choice,
                                  const tvm_edge_tensor* outputs, size_t count) {
  std::vector<size_t> wanted;
  for (size_t i = 0; i < count; ++i) {
    const char* name = outputs[i].name ? outputs[i].name : "";
    size_t which = 0;
    while (which < choice.outputs.size() &&
           signature.outputs[choice.outputs[which]].name != name) {
      ++which;
    }
    if (which == choice.outputs.size()) RefuseOutput(signature, choice, name);
    wanted.push_back(which);
  }
  return wanted;
}

std::vector<ResultMemory> MemoryOf(size_t count, const std::vector<size_t>& wanted,
                                   const tvm_edge_tensor* outputs) {
  std::vector<ResultMemory> memory;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const tvm_edge_tensor& output = outputs[i];
    if (output.data == nullptr || output.owner != nullptr) continue;
    if (!IsHostMemory(DeviceOf(output))) continue;
    memory.resize(count);
    memory[wanted[i]] = {output.data, output.nbytes};
  }
  return memory;
}

void HandOut(const Session& session, const Choice& choice, size_t which,
             const std::vector<Tensor>& results, bool on_device, tvm_edge_tensor* output) {
  const TensorSpec& spec = session.signature().outputs[choice.outputs[which]];
  const Tensor& result = results[which];
  if (result->ndim > TVM_EDGE_MAX_DIMS) {
    ThrowInput("the output " + Quoted(spec.name) + " has " + std::to_string(result->ndim) +
                   " dimensions, and tvm_edge_tensor has room for " +
                   std::to_string(TVM_EDGE_MAX_DIMS),
               {spec.name, std::to_string(TVM_EDGE_MAX_DIMS), std::to_string(result->ndim)});
  }
  if (ItemBytes(result->dtype) != ItemBytes(spec.dtype)) {
    ThrowArtifact("the code of this model returns " + ffi::DLDataTypeToString(result->dtype) +
                  " for the output " + spec.Text() + "; export it again");
  }
  if (output->owner != nullptr) ReleaseOwned(output);
  const size_t nbytes = BytesOf(result);
  if (output->data != nullptr) {
    RefuseDevice(session.signature(), spec, *output);
    if (output->nbytes < nbytes) {
      ThrowInput("the output " + Quoted(spec.name) + " has " + std::to_string(nbytes) +
                     " bytes, and the memory for it " + std::to_string(output->nbytes) +
                     "; pass more, or leave data null",
                 {spec.name, std::to_string(nbytes), std::to_string(output->nbytes)});
    }
    if (IsHostMemory(DeviceOf(*output))) {
      // Kernels of the CPU may have written it there.
      if (DataOf(*result.operator->()) != output->data) session.CopyOut(result, output->data);
      output->device_type = TVM_EDGE_CPU;
      output->device_id = 0;
    } else {
      session.CopyWithin(result, Over(output->data, ShapeOf(*result.operator->()), result->dtype,
                                      DeviceOf(*output), nullptr));
    }
  } else {
    auto owned = std::make_unique<Tensor>(on_device ? result : session.OnHost(result));
    const DLTensor& tensor = *owned->operator->();
    output->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    output->device_type = tensor.device.device_type;
    output->device_id = tensor.device.device_id;
    output->owner = owned.release();
  }
  output->nbytes = nbytes;
  output->dtype = {spec.dtype.code, spec.dtype.bits, spec.dtype.lanes};
  output->ndim = result->ndim;
  std::copy(result->shape, result->shape + result->ndim, output->shape);
}

void ReleaseOwned(tvm_edge_tensor* output) {
  if (output->owner == nullptr) return;
  delete static_cast<Tensor*>(output->owner);
  output->owner = nullptr;
  output->data = nullptr;
  output->nbytes = 0;
}

std::vector<Tensor> Zeros(const Signature& signature, const Choice& choice) {
  std::vector<Tensor> zeros;
  for (int position : choice.inputs) {
    const TensorSpec& spec = signature.inputs[position];
    const std::vector<int64_t> shape = spec.TypicalShape();
    Tensor tensor = Tensor::Empty(ffi::Shape(shape.begin(), shape.end()), spec.dtype, kCpu);
    if (const size_t nbytes = BytesOf(tensor)) std::memset(tensor->data, 0, nbytes);
    zeros.push_back(std::move(tensor));
  }
  return zeros;
}

}  // namespace tvm_edge
