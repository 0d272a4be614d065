// Frames on their way through a model, and memory that is somebody else's: C++17 over tvm_edge.h.
//
//   tvm_edge::Stream stream(model, 2);
//   stream.push({tvm_edge::input("data", frame, {1, 3, 224, 224})});
//   tvm_edge::Outputs outputs = stream.pop();
#ifndef TVM_EDGE_FRAMES_HPP_
#define TVM_EDGE_FRAMES_HPP_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tvm_edge.hpp"

namespace tvm_edge {

/*! \brief Frames on their way, whose results come in order; up to `depth` at a time. */
class Stream {
 public:
  Stream(const Model& model, size_t depth) {
    tvm_edge_stream* stream = nullptr;
    check(tvm_edge_stream_begin(model.handle(), depth, &stream));
    handle_.reset(stream);
    for (const Spec& output : model.outputs()) names_.push_back(output.name);
  }

  /*! \brief Send a frame on its way; inputs in host memory are copied before the call returns. */
  void push(const std::vector<tvm_edge_tensor>& inputs) {
    check(tvm_edge_stream_push(handle_.get(), inputs.data(), inputs.size()));
  }

  /*! \brief Wait for the oldest frame; what went wrong with it is thrown here. */
  Outputs pop() {
    std::vector<tvm_edge_tensor> wanted(names_.size());
    for (size_t i = 0; i < names_.size(); ++i) wanted[i].name = names_[i].c_str();
    check(tvm_edge_stream_pop(handle_.get(), wanted.data(), wanted.size()));
    std::vector<Output> made;
    for (const tvm_edge_tensor& tensor : wanted) made.emplace_back(tensor);
    return Outputs(std::move(made));
  }

  /*! \brief Wait for the oldest frame, and have its results in memory of the caller's. */
  void pop_into(std::vector<tvm_edge_tensor>& outputs) {
    check(tvm_edge_stream_pop(handle_.get(), outputs.data(), outputs.size()));
  }

  /*! \brief Count the frames that are on their way, or wait to be popped. */
  size_t size() const {
    size_t count = 0;
    check(tvm_edge_stream_pending(handle_.get(), &count));
    return count;
  }

 private:
  struct End {
    void operator()(tvm_edge_stream* stream) const { tvm_edge_stream_end(stream); }
  };
  std::unique_ptr<tvm_edge_stream, End> handle_;
  std::vector<std::string> names_;
};

/*! \brief Memory of somebody else's that a model for OpenCL reads and writes where it is. */
class Imported {
 public:
  /*! \brief Memory of this process, which begins on 64 bytes, for an OpenCL device that is its CPU. */
  static Imported host(const Model& model, void* data, size_t nbytes) {
    return Imported(model, {sizeof(tvm_edge_memory), TVM_EDGE_HOST_MEMORY, -1, data, nbytes});
  }
  /*! \brief A cl_mem, of the context of tvm_edge_opencl_context. */
  static Imported buffer(const Model& model, void* mem, size_t nbytes) {
    return Imported(model, {sizeof(tvm_edge_memory), TVM_EDGE_CL_MEM, -1, mem, nbytes});
  }
  static Imported dma_buf(const Model& model, int fd, size_t nbytes) {
    return Imported(model, {sizeof(tvm_edge_memory), TVM_EDGE_DMA_BUF, fd, nullptr, nbytes});
  }

  /*! \brief An input or output of a run over all of the memory, under a name that outlives it. */
  tvm_edge_tensor as(const char* name, tvm_edge_dtype dtype,
                     const std::vector<int64_t>& shape) const {
    tvm_edge_tensor made = tensor(name, tensor_.data, tensor_.nbytes, dtype, shape);
    made.device_type = tensor_.device_type;
    made.device_id = tensor_.device_id;
    return made;
  }

 private:
  Imported(const Model& model, const tvm_edge_memory& memory) {
    tvm_edge_buffer* made = nullptr;
    check(tvm_edge_import(model.handle(), &memory, &tensor_, &made));
    handle_.reset(made);
  }
  struct Free {
    void operator()(tvm_edge_buffer* buffer) const { tvm_edge_free_buffer(buffer); }
  };
  tvm_edge_tensor tensor_{};
  std::unique_ptr<tvm_edge_buffer, Free> handle_;
};

}  // namespace tvm_edge

#endif  // TVM_EDGE_FRAMES_HPP_
