// Run models that tvm-edge compiled: tvm_edge.h for C++17, with exceptions and owned handles.
//
//   tvm_edge::Model model("mobilenet_v2.tvme");
//   std::vector<float> image(1 * 3 * 224 * 224);
//   auto outputs = model.run({tvm_edge::input("data", image, {1, 3, 224, 224})});
//   const float* scores = outputs["logits"].data<float>();
#ifndef TVM_EDGE_TVM_EDGE_HPP_
#define TVM_EDGE_TVM_EDGE_HPP_

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tvm_edge.h"

namespace tvm_edge {

/*! \brief What a call refused, with the parts of its message. */
class Error : public std::runtime_error {
 public:
  explicit Error(const tvm_edge_error& error)
      : std::runtime_error(error.message),
        status_(error.status),
        name_(error.name),
        expected_(error.expected),
        got_(error.got) {}

  tvm_edge_status status() const { return status_; }
  const std::string& name() const { return name_; }
  const std::string& expected() const { return expected_; }
  const std::string& got() const { return got_; }

 private:
  tvm_edge_status status_;
  std::string name_, expected_, got_;
};

/*! \brief Throw the last error of this thread, if a call returned one. */
inline void check(tvm_edge_status status) {
  if (status == TVM_EDGE_OK) return;
  tvm_edge_error error{};
  error.struct_size = sizeof error;
  tvm_edge_last_error_details(&error);
  error.status = status;
  throw Error(error);
}

/*! \brief DLPack's type of a C++ type. */
template <typename T>
constexpr tvm_edge_dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  static_assert(std::is_arithmetic_v<U>, "name the type of the tensor's elements");
  if (std::is_same_v<U, bool>) return {TVM_EDGE_BOOL, 8, 1};
  const uint8_t code = std::is_floating_point_v<U> ? TVM_EDGE_FLOAT
                       : std::is_signed_v<U>       ? TVM_EDGE_INT
                                                   : TVM_EDGE_UINT;
  return {code, static_cast<uint8_t>(8 * sizeof(U)), 1};
}

/*! \brief A tensor over the caller's memory; the name and the memory outlive the run. */
inline tvm_edge_tensor tensor(const char* name, const void* data, size_t nbytes,
                              tvm_edge_dtype dtype, const std::vector<int64_t>& shape) {
  tvm_edge_tensor made{};
  made.name = name;
  made.data = const_cast<void*>(data);
  made.nbytes = nbytes;
  made.dtype = dtype;
  if (shape.size() > TVM_EDGE_MAX_DIMS) throw std::length_error("too many dimensions");
  made.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), made.shape);
  made.device_type = TVM_EDGE_CPU;
  return made;
}

/*! \brief An input over a vector's memory. */
template <typename T>
tvm_edge_tensor input(const char* name, const std::vector<T>& values,
                      const std::vector<int64_t>& shape) {
  return tensor(name, values.data(), values.size() * sizeof(T), dtype_of<T>(), shape);
}

/*! \brief An input over other memory. */
template <typename T>
tvm_edge_tensor input(const char* name, T* values, const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (int64_t length : shape) count *= static_cast<size_t>(length);
  return tensor(name, values, count * sizeof(T), dtype_of<T>(), shape);
}

/*!
 * \brief Memory for an output, of that shape at most.
 *
 * Kernels of the CPU write there if it begins on 64 bytes; otherwise results are copied to it.
 */
template <typename T>
tvm_edge_tensor output(const char* name, T* values, const std::vector<int64_t>& shape) {
  return input(name, values, shape);
}

/*! \brief A result: its shape, its type, and its memory, which it owns. */
class Output {
 public:
  Output() = default;
  explicit Output(const tvm_edge_tensor& tensor) : name_(tensor.name), tensor_(tensor) {}
  Output(Output&& other) noexcept
      : name_(std::move(other.name_)), tensor_(std::exchange(other.tensor_, {})) {}
  Output& operator=(Output&& other) noexcept {
    std::swap(name_, other.name_);
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~Output() { tvm_edge_release(&tensor_); }

  const std::string& name() const { return name_; }
  std::vector<int64_t> shape() const { return {tensor_.shape, tensor_.shape + tensor_.ndim}; }
  tvm_edge_dtype dtype() const { return tensor_.dtype; }
  size_t nbytes() const { return tensor_.nbytes; }

  /*! \brief Number of elements. */
  size_t size() const { return tensor_.nbytes / (tensor_.dtype.bits < 8 ? 1 : tensor_.dtype.bits / 8); }

  /*! \brief The elements, which must be of this type. */
  template <typename T>
  const T* data() const {
    const tvm_edge_dtype wanted = dtype_of<T>();
    if (wanted.code != tensor_.dtype.code || wanted.bits != tensor_.dtype.bits) {
      throw std::invalid_argument("the output " + name() + " is of another type");
    }
    return static_cast<const T*>(tensor_.data);
  }

  const tvm_edge_tensor& tensor() const { return tensor_; }

 private:
  std::string name_;
  tvm_edge_tensor tensor_{};
};

/*! \brief Results of a run, in the order in which they were asked for. */
class Outputs {
 public:
  Outputs() = default;
  explicit Outputs(std::vector<Output> all) : all_(std::move(all)) {}

  const Output& operator[](const std::string& name) const {
    for (const Output& output : all_) {
      if (output.name() == name) return output;
    }
    throw std::out_of_range("there is no output " + name);
  }
  const Output& operator[](size_t index) const { return all_.at(index); }
  size_t size() const { return all_.size(); }
  std::vector<Output>::const_iterator begin() const { return all_.begin(); }
  std::vector<Output>::const_iterator end() const { return all_.end(); }

 private:
  std::vector<Output> all_;
};

/*! \brief A dimension: its length, or its name and what it takes. */
struct Dim {
  int64_t length;
  std::string name;
  int64_t min, max, multiple;
};

struct Spec {
  std::string name;
  tvm_edge_dtype dtype;
  std::vector<Dim> dims;
};

struct LoadOptions {
  std::string device;
  int num_threads = 0;
  std::vector<int32_t> cpus;
  bool copy = false;
};

/*! \brief Names of models to run and of outputs to return; empty: all. */
struct RunOptions {
  std::vector<std::string> models;
  std::vector<std::string> outputs;
  bool device_outputs = false;
};

/*! \brief A run in the background. */
class Pending {
 public:
  Pending() = default;
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other) noexcept {
    finish();
    handle_ = std::exchange(other.handle_, nullptr);
    outputs_ = std::move(other.outputs_);
    names_ = std::move(other.names_);
    return *this;
  }
  ~Pending() { finish(); }

  /*! \brief Wait for the run; what went wrong in it is thrown here. */
  Outputs get() {
    check(tvm_edge_wait(handle_.release()));
    std::vector<Output> made;
    for (const tvm_edge_tensor& tensor : *outputs_) made.emplace_back(tensor);
    outputs_.reset();  // they own the memory now
    return Outputs(std::move(made));
  }

 private:
  friend class Model;
  struct Wait {
    void operator()(tvm_edge_pending* pending) const { tvm_edge_wait(pending); }
  };
  void finish() {
    handle_.reset();
    if (outputs_ == nullptr) return;
    for (tvm_edge_tensor& tensor : *outputs_) tvm_edge_release(&tensor);
    outputs_.reset();
  }
  std::unique_ptr<std::vector<std::string>> names_;
  std::unique_ptr<std::vector<tvm_edge_tensor>> outputs_;
  std::unique_ptr<tvm_edge_pending, Wait> handle_;
};

class Model {
 public:
  /*! \brief Load a file. */
  explicit Model(const std::string& path, const LoadOptions& options = {}) {
    const Given given(options);
    tvm_edge_model* model = nullptr;
    check(tvm_edge_load(path.c_str(), &given.options, &model));
    adopt(model);
  }

  /*! \brief Load what lies in memory, which stays there and unchanged as long as the model. */
  Model(const void* data, size_t nbytes, const LoadOptions& options = {}) {
    const Given given(options);
    tvm_edge_model* model = nullptr;
    check(tvm_edge_load_memory(data, nbytes, nullptr, nullptr, &given.options, &model));
    adopt(model);
  }

  /*! \brief Load an open file, which may be closed afterwards. */
  static Model from_fd(int fd, const LoadOptions& options = {}) {
    const Given given(options);
    tvm_edge_model* model = nullptr;
    check(tvm_edge_load_fd(fd, &given.options, &model));
    Model made;
    made.adopt(model);
    return made;
  }

  const std::vector<Spec>& inputs() const { return inputs_; }
  const std::vector<Spec>& outputs() const { return outputs_; }
  const std::vector<std::string>& models() const { return models_; }

  /*! \brief Run once; every call has results of its own. */
  Outputs run(const std::vector<tvm_edge_tensor>& inputs, const RunOptions& options = {}) const {
    const std::vector<std::string> names = wanted_names(options);
    std::vector<tvm_edge_tensor> wanted = empty(names);
    const Chosen chosen(options);
    check(tvm_edge_run(handle_.get(), &chosen.options, inputs.data(), inputs.size(), wanted.data(),
                       wanted.size()));
    std::vector<Output> made;
    for (const tvm_edge_tensor& tensor : wanted) made.emplace_back(tensor);
    return Outputs(std::move(made));
  }

  /*! \brief Run once, with the results in memory of the caller's: tensors of `output`. */
  void run_into(const std::vector<tvm_edge_tensor>& inputs, std::vector<tvm_edge_tensor>& outputs,
                const RunOptions& options = {}) const {
    const Chosen chosen(options);
    check(tvm_edge_run(handle_.get(), &chosen.options, inputs.data(), inputs.size(),
                       outputs.data(), outputs.size()));
  }

  /*! \brief Run in the background, in order; inputs are copied before the call returns. */
  Pending run_async(const std::vector<tvm_edge_tensor>& inputs, const RunOptions& options = {},
                    size_t max_pending = 256) const {
    Pending pending;
    pending.names_ = std::make_unique<std::vector<std::string>>(wanted_names(options));
    pending.outputs_ = std::make_unique<std::vector<tvm_edge_tensor>>(empty(*pending.names_));
    const Chosen chosen(options);
    tvm_edge_pending* handle = nullptr;
    check(tvm_edge_run_async(handle_.get(), &chosen.options, inputs.data(), inputs.size(),
                             pending.outputs_->data(), pending.outputs_->size(), max_pending,
                             &handle));
    pending.handle_.reset(handle);
    return pending;
  }

  void warmup(const RunOptions& options = {}) const {
    const Chosen chosen(options);
    check(tvm_edge_warmup(handle_.get(), &chosen.options));
  }

  /*! \brief For calls of tvm_edge.h. */
  tvm_edge_model* handle() const { return handle_.get(); }

 private:
  struct Given {
    explicit Given(const LoadOptions& from) {
      options.struct_size = sizeof options;
      options.device = from.device.empty() ? nullptr : from.device.c_str();
      options.num_threads = from.num_threads;
      options.cpus = from.cpus.empty() ? nullptr : from.cpus.data();
      options.num_cpus = from.cpus.size();
      options.copy = from.copy;
    }
    tvm_edge_load_options options{};
  };
  struct Chosen {
    explicit Chosen(const RunOptions& from) {
      for (const std::string& name : from.models) names.push_back(name.c_str());
      options.struct_size = sizeof options;
      options.models = names.empty() ? nullptr : names.data();
      options.num_models = names.size();
      options.device_outputs = from.device_outputs;
    }
    std::vector<const char*> names;
    tvm_edge_run_options options{};
  };
  struct Free {
    void operator()(tvm_edge_model* model) const { tvm_edge_free(model); }
  };

  Model() = default;

  void adopt(tvm_edge_model* model) {
    handle_.reset(model);
    if (tvm_edge_abi_version() != TVM_EDGE_ABI_VERSION) {
      throw std::runtime_error("the library of tvm-edge is of another version than its header");
    }
    size_t count = 0;
    check(tvm_edge_num_inputs(model, &count));
    for (size_t i = 0; i < count; ++i) inputs_.push_back(spec(tvm_edge_input, i));
    check(tvm_edge_num_outputs(model, &count));
    for (size_t i = 0; i < count; ++i) outputs_.push_back(spec(tvm_edge_output, i));
    check(tvm_edge_num_models(model, &count));
    for (size_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      check(tvm_edge_model_name(model, i, &name));
      models_.emplace_back(name);
    }
  }

  Spec spec(tvm_edge_status (*get)(tvm_edge_model*, size_t, tvm_edge_spec*), size_t index) const {
    tvm_edge_spec found{};
    found.struct_size = sizeof found;
    check(get(handle_.get(), index, &found));
    Spec made{found.name, found.dtype, {}};
    for (int32_t axis = 0; axis < found.ndim; ++axis) {
      const tvm_edge_dim& dim = found.dims[axis];
      made.dims.push_back(
          {dim.length, dim.name ? dim.name : "", dim.min, dim.max, dim.multiple});
    }
    return made;
  }

  /*! \brief Names of the outputs that are asked for, or of all of the models that run. */
  std::vector<std::string> wanted_names(const RunOptions& options) const {
    if (!options.outputs.empty()) return options.outputs;
    std::vector<std::string> wanted;
    for (const Spec& output : outputs_) {
      const std::string model = output.name.substr(0, output.name.find('/'));
      const auto& run = options.models;
      if (run.empty() || std::find(run.begin(), run.end(), model) != run.end()) {
        wanted.push_back(output.name);
      }
    }
    return wanted;
  }

  /*! \brief Outputs to be filled in, over names that live until then. */
  static std::vector<tvm_edge_tensor> empty(const std::vector<std::string>& names) {
    std::vector<tvm_edge_tensor> made(names.size());
    for (size_t i = 0; i < names.size(); ++i) made[i].name = names[i].c_str();
    return made;
  }

  std::unique_ptr<tvm_edge_model, Free> handle_;
  std::vector<Spec> inputs_, outputs_;
  std::vector<std::string> models_;
};

}  // namespace tvm_edge

#endif  // TVM_EDGE_TVM_EDGE_HPP_
