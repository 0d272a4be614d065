// The C API (tvm_edge.h): models and runs.
#include <tvm_edge/tvm_edge.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_calls.h"
#include "c_tensors.h"
#include "register.h"
#include "text.h"

namespace tvm_edge {
namespace {

struct PendingRun {
  std::shared_ptr<Task> task;
};

Handles<PendingRun>& pending_runs() {
  static auto* handles = new Handles<PendingRun>();
  return *handles;
}

LoadOptions OptionsOf(const tvm_edge_load_options* given, bool* copy) {
  const auto options = Versioned(given, "options");
  LoadOptions made;
  made.device = options.device;
  made.num_threads = options.num_threads;
  if (options.num_cpus) {
    RequireArgument(options.cpus, "options.cpus");
    made.cpus.assign(options.cpus, options.cpus + options.num_cpus);
  }
  *copy = options.copy != 0;
  return made;
}

template <typename Open>
tvm_edge_status Load(const tvm_edge_load_options* given, tvm_edge_model** model,
                     const Open& open) noexcept {
  return Guarded([&] {
    RequireArgument(model, "model");
    *model = nullptr;
    TvmEdgeNativeRegister();
    TvmEdgeOpenCLRegister();
    bool copy = false;
    const LoadOptions options = OptionsOf(given, &copy);
    auto loaded = std::make_shared<Model>(open(copy), options);
    *model = reinterpret_cast<tvm_edge_model*>(LoadedModels().Add(std::move(loaded)));
  });
}

Choice ChoiceOf(const Signature& signature, const tvm_edge_run_options& options) {
  std::vector<std::string> names;
  for (size_t i = 0; i < options.num_models; ++i) {
    RequireArgument(options.models[i], "options.models");
    names.emplace_back(options.models[i]);
  }
  return ChooseModels(signature, names);
}

/*! \brief A run's arguments, checked. */
struct RunCall {
  RunCall(Model* model, const tvm_edge_run_options* given, const tvm_edge_tensor* inputs,
          size_t num_inputs, const tvm_edge_tensor* outputs, size_t num_outputs) {
    const auto options = Versioned(given, "options");
    device_outputs = options.device_outputs != 0;
    if (num_inputs) RequireArgument(inputs, "inputs");
    if (num_outputs) RequireArgument(outputs, "outputs");
    const Signature& signature = model->signature();
    choice = &model->session().every();
    if (options.models != nullptr) {
      own_choice = ChoiceOf(signature, options);
      choice = &own_choice;
    }
    this->inputs = InputsOf(signature, *choice, inputs, num_inputs);
    wanted = WantedOutputs(signature, *choice, outputs, num_outputs);
  }

  void Run(Model* model, tvm_edge_tensor* outputs) {
    Session& session = model->session();
    const std::vector<Tensor> results = session.Run(
        *choice, std::move(inputs), MemoryOf(choice->outputs.size(), wanted, outputs));
    for (size_t i = 0; i < wanted.size(); ++i) {
      HandOut(session, *choice, wanted[i], results, device_outputs, &outputs[i]);
    }
    if (const std::string reason = session.RecordingFailure(); !reason.empty()) {
      Log("warning", "kernels are launched one by one because recording them failed (" + reason +
                         "); results are right");
    }
  }

  Choice own_choice;
  const Choice* choice;
  std::vector<Tensor> inputs;
  std::vector<size_t> wanted;
  bool device_outputs;
};

tvm_edge_status Describe(tvm_edge_model* handle, bool input, size_t index, tvm_edge_spec* spec) {
  return WithModel(handle, [&](const std::shared_ptr<Model>& model) {
    RequireArgument(spec, "spec");
    const Signature& signature = model->signature();
    const auto& specs = input ? signature.inputs : signature.outputs;
    if (index >= specs.size()) {
      ThrowInput("index is " + std::to_string(index) + ", and the model has " +
                     std::to_string(specs.size()) + (input ? " inputs" : " outputs"),
                 {"index", "less than " + std::to_string(specs.size()), std::to_string(index)});
    }
    tvm_edge_spec made = SpecOf(specs[index]);
    made.struct_size = Versioned(spec, "spec").struct_size;
    std::memcpy(spec, &made, std::min(sizeof made, spec->struct_size));
  });
}

}  // namespace
}  // namespace tvm_edge

using namespace tvm_edge;  // NOLINT: C has none

uint32_t tvm_edge_abi_version(void) { return TVM_EDGE_ABI_VERSION; }
const char* tvm_edge_version(void) { return TVM_EDGE_VERSION; }
const char* tvm_edge_last_error(void) { return LastFailure().message.c_str(); }

tvm_edge_status tvm_edge_last_error_details(tvm_edge_error* error) {
  if (error == nullptr || error->struct_size < sizeof(tvm_edge_error)) {
    return TVM_EDGE_INPUT_ERROR;  // what is kept stays
  }
  const Failure& failure = LastFailure();
  error->status = failure.status;
  error->message = failure.message.c_str();
  error->name = failure.details.name.c_str();
  error->expected = failure.details.expected.c_str();
  error->got = failure.details.got.c_str();
  return TVM_EDGE_OK;
}

void tvm_edge_set_log(tvm_edge_log log, void* context) { SetLog(log, context); }

tvm_edge_status tvm_edge_load(const char* path, const tvm_edge_load_options* options,
                              tvm_edge_model** model) {
  return Load(options, model, [&](bool copy) {
    RequireArgument(path, "path");
    return OpenArtifact(path, copy);
  });
}

tvm_edge_status tvm_edge_load_fd(int fd, const tvm_edge_load_options* options,
                                 tvm_edge_model** model) {
  return Load(options, model, [&](bool copy) {
    return OpenArtifact(fd, "file descriptor " + std::to_string(fd), copy);
  });
}

tvm_edge_status tvm_edge_load_memory(const void* data, size_t nbytes,
                                     tvm_edge_release_memory release, void* context,
                                     const tvm_edge_load_options* options,
                                     tvm_edge_model** model) {
  std::shared_ptr<void> owner;
  if (release) {
    const tvm_edge_status status = Guarded([&] {
      owner = std::shared_ptr<void>(nullptr, [=](void*) { release(context); });
    });
    if (status != TVM_EDGE_OK) return status;
  }
  return Load(options, model, [&](bool copy) {
    RequireArgument(data, "data");
    return OpenArtifact(data, nbytes, std::move(owner), copy);
  });
}

tvm_edge_status tvm_edge_free(tvm_edge_model* model) {
  if (model == nullptr) return TVM_EDGE_OK;
  std::shared_ptr<Model> taken = LoadedModels().Take(model);
  if (taken == nullptr) return RefuseHandle("model");
  return Guarded([&] { taken.reset(); });
}

tvm_edge_status tvm_edge_num_inputs(tvm_edge_model* model, size_t* count) {
  return WithModel(model, [&](const auto& found) {
    RequireArgument(count, "count");
    *count = found->signature().inputs.size();
  });
}

tvm_edge_status tvm_edge_num_outputs(tvm_edge_model* model, size_t* count) {
  return WithModel(model, [&](const auto& found) {
    RequireArgument(count, "count");
    *count = found->signature().outputs.size();
  });
}

tvm_edge_status tvm_edge_num_models(tvm_edge_model* model, size_t* count) {
  return WithModel(model, [&](const auto& found) {
    RequireArgument(count, "count");
    *count = found->signature().models.size();
  });
}

tvm_edge_status tvm_edge_input(tvm_edge_model* model, size_t index, tvm_edge_spec* spec) {
  return Describe(model, true, index, spec);
}

tvm_edge_status tvm_edge_output(tvm_edge_model* model, size_t index, tvm_edge_spec* spec) {
  return Describe(model, false, index, spec);
}

tvm_edge_status tvm_edge_model_name(tvm_edge_model* model, size_t index, const char** name) {
  return WithModel(model, [&](const auto& found) {
    RequireArgument(name, "name");
    const auto& parts = found->signature().models;
    if (index >= parts.size()) {
      ThrowInput("index is " + std::to_string(index) + ", and there are " +
                     std::to_string(parts.size()) + " models",
                 {"index", "less than " + std::to_string(parts.size()), std::to_string(index)});
    }
    *name = parts[index].name.c_str();
  });
}

tvm_edge_status tvm_edge_run(tvm_edge_model* model, const tvm_edge_run_options* options,
                             const tvm_edge_tensor* inputs, size_t num_inputs,
                             tvm_edge_tensor* outputs, size_t num_outputs) {
  return WithModel(model, [&](const std::shared_ptr<Model>& found) {
    RunCall call(found.get(), options, inputs, num_inputs, outputs, num_outputs);
    call.Run(found.get(), outputs);
  });
}

void tvm_edge_release(tvm_edge_tensor* tensor) {
  if (tensor != nullptr) ReleaseOwned(tensor);
}

tvm_edge_status tvm_edge_run_async(tvm_edge_model* model, const tvm_edge_run_options* options,
                                   const tvm_edge_tensor* inputs, size_t num_inputs,
                                   tvm_edge_tensor* outputs, size_t num_outputs,
                                   size_t max_pending, tvm_edge_pending** pending) {
  return WithModel(model, [&](const std::shared_ptr<Model>& found) {
    RequireArgument(pending, "pending");
    *pending = nullptr;
    if (max_pending == 0) {
      ThrowInput("max_pending is 0, and must be a positive number",
                 {"max_pending", "a positive integer", "0"});
    }
    auto call = std::make_shared<RunCall>(found.get(), options, inputs, num_inputs, outputs,
                                          num_outputs);
    std::vector<Tensor> checked = call->inputs;
    Bind(found->signature(), *call->choice, &checked);
    found->session().CheckProcess();
    for (Tensor& input : call->inputs) {
      if (IsHostMemory(input->device)) input = HostCopy(*input.operator->());
    }
    auto run = std::make_shared<PendingRun>();
    run->task = found->queue().Submit(
        max_pending, [found, call, outputs] { call->Run(found.get(), outputs); });
    *pending = reinterpret_cast<tvm_edge_pending*>(pending_runs().Add(std::move(run)));
  });
}

tvm_edge_status tvm_edge_wait(tvm_edge_pending* pending) {
  const std::shared_ptr<PendingRun> run = pending_runs().Take(pending);
  if (run == nullptr) return RefuseHandle("pending");
  const std::exception_ptr error = run->task->Wait();
  return Guarded([&] {
    if (error) std::rethrow_exception(error);
  });
}

tvm_edge_status tvm_edge_warmup(tvm_edge_model* model, const tvm_edge_run_options* options) {
  return WithModel(model, [&](const std::shared_ptr<Model>& found) {
    const auto given = Versioned(options, "options");
    const Signature& signature = found->signature();
    const Choice choice = given.models ? ChoiceOf(signature, given) : EveryModel(signature);
    found->session().WarmUp(choice, Zeros(signature, choice));
  });
}
