// The C API (tvm_edge.h): streams of frames, and memory that is somebody else's.
#include <tvm/ffi/function.h>
#include <tvm_edge/tvm_edge.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_calls.h"
#include "c_tensors.h"
#include "frame_stream.h"
#include "text.h"

namespace tvm_edge {
namespace {

Handles<FrameStream>& streams() {
  static auto* handles = new Handles<FrameStream>();
  return *handles;
}
Handles<Tensor>& buffers() {
  static auto* handles = new Handles<Tensor>();
  return *handles;
}

template <typename Function>
tvm_edge_status WithStream(tvm_edge_stream* handle, const Function& function) noexcept {
  return WithHandle(streams(), handle, "stream", function);
}

/*! \brief The OpenCL device of a model. \throws ffi::Error An InputError: it has none. */
int64_t OpenCLDevice(Model* model) {
  for (const auto& device : model->session().devices()) {
    if (device->kind() == "opencl") return device->handle().device_id;
  }
  ThrowInput("the model runs on " + Joined(model->signature().devices.kinds) +
                 ", and memory is imported for OpenCL alone; pass it as it is",
             {"model", "a model for OpenCL", Joined(model->signature().devices.kinds)});
}

template <typename... Arguments>
ffi::Any OpenCL(const char* name, Arguments&&... arguments) {
  return ffi::Function::GetGlobalRequired(std::string("tvm_edge.opencl.") + name)(
      std::forward<Arguments>(arguments)...);
}

Tensor Imported(int64_t device, const tvm_edge_memory& memory) try {
  const auto nbytes = static_cast<int64_t>(memory.nbytes);
  ffi::Any made;
  switch (memory.kind) {
    case TVM_EDGE_HOST_MEMORY:
      RequireArgument(memory.address, "memory.address");
      made = OpenCL("import_host_memory", device, memory.address, nbytes);
      break;
    case TVM_EDGE_CL_MEM:
      RequireArgument(memory.address, "memory.address");
      made = OpenCL("import_buffer", device, memory.address, nbytes);
      break;
    case TVM_EDGE_DMA_BUF:
      made = OpenCL("import_dma_buf", device, static_cast<int64_t>(memory.fd), nbytes);
      break;
    default:
      ThrowInput("memory.kind is " + std::to_string(memory.kind) +
                     "; use TVM_EDGE_HOST_MEMORY, TVM_EDGE_CL_MEM or TVM_EDGE_DMA_BUF",
                 {"memory.kind", "1, 2 or 3", std::to_string(memory.kind)});
  }
  return Tensor(made.cast<ffi::Tensor>());
} catch (const ffi::Error& error) {
  if (error.kind() == "ValueError") ThrowInput(error.message(), {"memory", "", ""});
  if (error.kind() == "NotImplementedError") Throw(kDeviceUnavailableError, error.message());
  throw;
}

}  // namespace
}  // namespace tvm_edge

using namespace tvm_edge;  // NOLINT: C has none

tvm_edge_status tvm_edge_stream_begin(tvm_edge_model* model, size_t depth,
                                      tvm_edge_stream** stream) {
  return WithModel(model, [&](const std::shared_ptr<Model>& found) {
    RequireArgument(stream, "stream");
    *stream = nullptr;
    if (depth == 0 || depth > 1024) {
      ThrowInput("depth is " + std::to_string(depth) +
                     ", and must be how many frames may be on their way, 1 to 1024",
                 {"depth", "1 to 1024", std::to_string(depth)});
    }
    auto made = std::make_shared<FrameStream>(found, depth);
    *stream = reinterpret_cast<tvm_edge_stream*>(streams().Add(std::move(made)));
  });
}

tvm_edge_status tvm_edge_stream_push(tvm_edge_stream* stream, const tvm_edge_tensor* inputs,
                                     size_t num_inputs) {
  return WithStream(stream, [&](const std::shared_ptr<FrameStream>& found) {
    if (num_inputs) RequireArgument(inputs, "inputs");
    Session& session = found->model().session();
    found->Push(InputsOf(session.signature(), session.every(), inputs, num_inputs));
  });
}

tvm_edge_status tvm_edge_stream_pop(tvm_edge_stream* stream, tvm_edge_tensor* outputs,
                                    size_t num_outputs) {
  return WithStream(stream, [&](const std::shared_ptr<FrameStream>& found) {
    if (num_outputs) RequireArgument(outputs, "outputs");
    Session& session = found->model().session();
    const Choice& every = session.every();
    const auto wanted = WantedOutputs(session.signature(), every, outputs, num_outputs);
    const std::vector<Tensor> results = found->Pop();
    for (size_t i = 0; i < wanted.size(); ++i) {
      HandOut(session, every, wanted[i], results, /*on_device=*/false, &outputs[i]);
    }
  });
}

tvm_edge_status tvm_edge_stream_pending(tvm_edge_stream* stream, size_t* count) {
  return WithStream(stream, [&](const std::shared_ptr<FrameStream>& found) {
    RequireArgument(count, "count");
    *count = found->pending();
  });
}

tvm_edge_status tvm_edge_stream_end(tvm_edge_stream* stream) {
  if (stream == nullptr) return TVM_EDGE_OK;
  std::shared_ptr<FrameStream> taken = streams().Take(stream);
  if (taken == nullptr) return RefuseHandle("stream");
  return Guarded([&] { taken.reset(); });
}

tvm_edge_status tvm_edge_import(tvm_edge_model* model, const tvm_edge_memory* memory,
                                tvm_edge_tensor* tensor, tvm_edge_buffer** buffer) {
  return WithModel(model, [&](const std::shared_ptr<Model>& found) {
    RequireArgument(memory, "memory");
    RequireArgument(tensor, "tensor");
    RequireArgument(buffer, "buffer");
    *buffer = nullptr;
    const auto given = Versioned(memory, "memory");
    auto made = std::make_shared<Tensor>(Imported(OpenCLDevice(found.get()), given));
    tensor->data = (*made)->data;
    tensor->nbytes = BytesOf(*made);
    tensor->device_type = TVM_EDGE_OPENCL;
    tensor->device_id = (*made)->device.device_id;
    tensor->owner = nullptr;
    *buffer = reinterpret_cast<tvm_edge_buffer*>(buffers().Add(std::move(made)));
  });
}

tvm_edge_status tvm_edge_free_buffer(tvm_edge_buffer* buffer) {
  if (buffer == nullptr) return TVM_EDGE_OK;
  std::shared_ptr<Tensor> taken = buffers().Take(buffer);
  if (taken == nullptr) return RefuseHandle("buffer");
  return Guarded([&] { taken.reset(); });
}

tvm_edge_status tvm_edge_opencl_context(tvm_edge_model* model, void** context, void** device) {
  return WithModel(model, [&](const std::shared_ptr<Model>& found) {
    RequireArgument(context, "context");
    RequireArgument(device, "device");
    const int64_t index = OpenCLDevice(found.get());
    *context = OpenCL("context", index).cast<void*>();
    *device = OpenCL("device", index).cast<void*>();
  });
}
