// Functions by which Python's CompiledModel uses sessions and artifacts.
//
// Objects are TVM modules, whose functions Python looks up once: a call of one costs 0.1 us.
#include "python_api.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "byte_source.h"
#include "error.h"
#include "model.h"
#include "text.h"

namespace tvm_edge {
namespace {

using Tensors = ffi::Array<ffi::Tensor>;
using Names = ffi::Optional<ffi::Array<ffi::String>>;
using Functions = std::map<std::string, ffi::Function>;

/*! \brief A TVM module of functions that share an object. */
class FunctionsModule : public ffi::ModuleObj {
 public:
  FunctionsModule(const char* kind, Functions functions)
      : kind_(kind), functions_(std::move(functions)) {}

  const char* kind() const final { return kind_; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto found = functions_.find(name);
    if (found == functions_.end()) return std::nullopt;
    return found->second;
  }

 private:
  const char* kind_;
  Functions functions_;
};

template <typename Callable>
ffi::Function Typed(Callable callable) {
  return ffi::Function::FromTyped(std::move(callable));
}

std::vector<std::string> StringsOf(const ffi::Array<ffi::String>& strings) {
  return {strings.begin(), strings.end()};
}

std::vector<Tensor> TensorsOf(const Tensors& tensors) { return {tensors.begin(), tensors.end()}; }

Tensors ArrayOf(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

Choice ChoiceOf(const Signature& signature, const Names& names) {
  return names ? ChooseModels(signature, StringsOf(*names)) : EveryModel(signature);
}

void CheckCount(const Choice& choice, size_t count) {
  if (count != choice.inputs.size()) {
    TVM_FFI_THROW(InternalError) << choice.inputs.size() << " inputs are wanted, not " << count;
  }
}

// ------------------------------------------------------------------------------------ sessions

/*! \brief Results that are wanted, in host memory unless they may stay where they are. */
Tensors Wanted(const Session& session, const std::vector<Tensor>& results,
               const std::vector<int64_t>& wanted, bool device_outputs) {
  Tensors made;
  for (int64_t which : wanted) {
    const Tensor& result = results.at(static_cast<size_t>(which));
    made.push_back(device_outputs ? result : session.OnHost(result));
  }
  return made;
}

std::vector<Tensor> ArgumentsOf(const ffi::PackedArgs& args, int first = 0) {
  std::vector<Tensor> tensors;
  tensors.reserve(static_cast<size_t>(args.size() - first));
  for (int i = first; i < args.size(); ++i) tensors.push_back(args[i].cast<ffi::Tensor>());
  return tensors;
}

/*!
 * \brief A function from inputs, in order, to the outputs that are wanted.
 *
 * One output comes by itself: to take it out of an array costs Python 1 us.
 */
ffi::Function RunnerOf(const std::shared_ptr<Session>& session, const Names& names,
                       const ffi::Shape& positions, bool device_outputs) {
  const Choice choice = ChoiceOf(session->signature(), names);
  const std::vector<int64_t> wanted(positions.begin(), positions.end());
  return ffi::Function::FromPacked(
      [session, choice, wanted, device_outputs](ffi::PackedArgs args, ffi::Any* result) {
        CheckCount(choice, static_cast<size_t>(args.size()));
        const std::vector<Tensor> results = session->Run(choice, ArgumentsOf(args));
        if (wanted.size() == 1) {
          const Tensor& only = results.at(static_cast<size_t>(wanted[0]));
          *result = device_outputs ? only : session->OnHost(only);
        } else {
          *result = Wanted(*session, results, wanted, device_outputs);
        }
      });
}

/*! \brief A function from a slot and inputs to inputs in memory that their source does not write. */
ffi::Function FrameInputs(const std::shared_ptr<Session>& session) {
  struct Slots {
    std::mutex lock;
    std::map<int64_t, Staging> staging;
  };
  auto slots = std::make_shared<Slots>();
  return ffi::Function::FromPacked([session, slots](ffi::PackedArgs args, ffi::Any* result) {
    std::vector<Tensor> inputs = ArgumentsOf(args, 1);
    CheckCount(session->every(), inputs.size());
    std::vector<Tensor> checked = inputs;
    Bind(session->signature(), session->every(), &checked);
    Staging* staging;
    {
      std::lock_guard<std::mutex> lock(slots->lock);
      staging = &slots->staging[args[0].cast<int64_t>()];
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!IsHostMemory(inputs[i]->device)) continue;
      inputs[i] = staging->Copied(static_cast<int>(i), *inputs[i].operator->());
    }
    *result = ArrayOf(inputs);
  });
}

using Frame = ffi::Array<ffi::Any>;  // values of a StagedFrame, and its addresses as a shape

Frame FrameOf(const StagedFrame& staged) {
  std::vector<int64_t> taken;
  for (const void* address : staged.taken) taken.push_back(reinterpret_cast<int64_t>(address));
  return {ffi::Array<ffi::Any>(staged.values.begin(), staged.values.end()),
          ffi::Shape(taken.begin(), taken.end())};
}

StagedFrame StagedOf(const Frame& frame) {
  StagedFrame staged;
  const auto values = frame[0].cast<ffi::Array<ffi::Any>>();
  staged.values.assign(values.begin(), values.end());
  for (int64_t address : frame[1].cast<ffi::Shape>()) {
    staged.taken.push_back(reinterpret_cast<const void*>(address));
  }
  return staged;
}

void AddRuns(const std::shared_ptr<Session>& session, Functions* functions) {
  const auto choice = [session](const Names& names) {
    return ChoiceOf(session->signature(), names);
  };
  Functions& made = *functions;
  made["runner"] = Typed([session](Names names, ffi::Shape wanted, bool device_outputs) {
    return RunnerOf(session, names, wanted, device_outputs);
  });
  made["warm_up"] = Typed([=](Names names, Tensors inputs) {
    return ArrayOf(session->WarmUp(choice(names), TensorsOf(inputs)));
  });
  made["place"] = Typed([=](Names names, Tensors inputs) {
    return ArrayOf(session->Place(choice(names), TensorsOf(inputs)));
  });
  made["run_placed"] = Typed([=](Names names, Tensors placed, int64_t runs) {
    session->RunPlaced(choice(names), TensorsOf(placed), runs);
  });
  made["run_instrumented"] = Typed([=](Names names, Tensors inputs, ffi::Function instrument) {
    session->RunInstrumented(choice(names), TensorsOf(inputs), instrument);
  });
  made["copied"] = Typed([=](Names names, Tensors given) {
    std::vector<Tensor> checked = TensorsOf(given), copies = TensorsOf(given);
    const Choice chosen = choice(names);
    CheckCount(chosen, checked.size());
    Bind(session->signature(), chosen, &checked);
    for (Tensor& input : copies) {
      if (IsHostMemory(input->device)) input = HostCopy(*input.operator->());
    }
    return ArrayOf(copies);
  });
}

void AddStages(const std::shared_ptr<Session>& session, Functions* functions) {
  Functions& made = *functions;
  made["frame_inputs"] = Typed([session] { return FrameInputs(session); });
  made["stages"] = Typed([session] {  // by the position of their devices
    ffi::Array<int64_t> devices;
    for (const Stage& stage : session->stages()) {
      devices.push_back(static_cast<int64_t>(stage.device));
    }
    return devices;
  });
  made["run_first_stage"] = Typed([session](Tensors inputs) {
    return FrameOf(session->RunFirstStage(TensorsOf(inputs)));
  });
  made["run_stage"] = Typed([session](int64_t number, Frame frame) {
    return FrameOf(session->RunStage(static_cast<size_t>(number), StagedOf(frame)));
  });
  made["results_of"] = Typed([session](Frame frame, ffi::Shape wanted, bool device_outputs) {
    return Wanted(*session, session->ResultsOf(StagedOf(frame)), {wanted.begin(), wanted.end()},
                  device_outputs);
  });
}

ffi::Module ModuleOf(const std::shared_ptr<Session>& session) {
  Functions made;
  AddRuns(session, &made);
  AddStages(session, &made);
  made["start_thread"] = Typed([session] { session->StartThread(); });
  made["synchronize"] = Typed([session] { session->Synchronize(); });
  made["check_process"] = Typed([session] { session->CheckProcess(); });
  made["streams"] = Typed([session] { return session->streams(); });
  made["recording_failure"] =
      Typed([session] { return ffi::String(session->RecordingFailure()); });
  made["machines"] = Typed([session] {
    return ffi::Shape({static_cast<int64_t>(session->machine_count()),
                       static_cast<int64_t>(session->machines_made())});
  });
  made["inputs_staged"] =
      Typed([session] { return static_cast<int64_t>(session->inputs_staged()); });
  made["inputs_anywhere"] = Typed([session] {
    const std::set<int>& inputs = session->inputs_anywhere();
    return ffi::Shape(inputs.begin(), inputs.end());
  });
  made["recorded"] = Typed([session](ffi::String function) {
    ffi::Array<ffi::Array<ffi::Shape>> found;
    for (const Shapes& shapes : session->Recorded(function)) {
      ffi::Array<ffi::Shape> each;
      for (const auto& shape : shapes) each.push_back(ffi::Shape(shape.begin(), shape.end()));
      found.push_back(each);
    }
    return found;
  });
  made["window_bytes"] = Typed([session] {
    const std::vector<int64_t> sizes = session->WindowBytes();
    return ffi::Shape(sizes.begin(), sizes.end());
  });
  return ffi::Module(ffi::make_object<FunctionsModule>("tvm_edge.session", std::move(made)));
}

// ----------------------------------------------------------------------------------- artifacts


/*! \brief A TVM module over an artifact, which sessions find in it again. */
class ArtifactModule : public FunctionsModule {
 public:
  ArtifactModule(std::shared_ptr<Artifact> artifact, Functions functions)
      : FunctionsModule("tvm_edge.artifact", std::move(functions)),
        artifact(std::move(artifact)) {}
  const std::shared_ptr<Artifact> artifact;
};

ffi::Module ModuleOf(const std::shared_ptr<Artifact>& artifact) {
  Functions made;
  made["manifest"] = Typed([artifact] { return ffi::String(artifact->manifest); });
  made["weights"] = Typed([artifact] { return ArrayOf(artifact->weights); });
  made["programs"] = Typed([artifact] { return ffi::Bytes(artifact->programs); });
  made["has_smaller"] = Typed([artifact] { return artifact->smaller != nullptr; });
  made["code"] = Typed([artifact](bool smaller) {
    return ffi::Bytes((smaller ? artifact->smaller : artifact->library)->Content());
  });
  made["module"] = Typed([artifact](bool smaller) {
    return LoadLibrary("the artifact " + Quoted(artifact->path),
                       *(smaller ? artifact->smaller : artifact->library));
  });
  made["release"] = Typed([artifact](int64_t weight) {
    artifact->Release(static_cast<size_t>(weight));
  });
  // Where weights are mapped from was written since: an error.
  made["check"] = Typed([artifact] {
    if (artifact->mapping) artifact->mapping->Check();
  });
  return ffi::Module(ffi::make_object<ArtifactModule>(artifact, std::move(made)));
}

/*! \brief An artifact in memory, which a tensor of bytes holds. */
ffi::Module OpenMemory(const ffi::Tensor& bytes, bool copy) {
  auto owner = std::make_shared<ffi::Tensor>(bytes);
  const DLTensor& tensor = *bytes.GetDLTensorPtr();
  return ModuleOf(OpenArtifact(DataOf(tensor), BytesOf(tensor), owner, copy));
}

// ---------------------------------------------------------------------------------- signatures

Signature ReadSignature(const ffi::String& json) try {
  return Signature::Read(JsonValue::Parse({json.data(), json.size()}));
} catch (const Damage& damage) {
  throw ffi::Error("ValueError", damage.what(), "");
}

/*! \brief What is refused of inputs and outputs, for models that run elsewhere, too. */
ffi::Module SignatureModule(const ffi::String& json) {
  auto signature = std::make_shared<Signature>(ReadSignature(json));
  Functions made;
  made["bind"] = Typed([signature](Names names, Tensors given) {
    std::vector<Tensor> inputs = TensorsOf(given);
    const Choice choice = ChoiceOf(*signature, names);
    CheckCount(choice, inputs.size());
    Bind(*signature, choice, &inputs);
  });
  made["choose"] = Typed([signature](ffi::Array<ffi::String> names) {
    ffi::Array<int64_t> numbers;
    for (int number : ChooseModels(*signature, StringsOf(names)).numbers) numbers.push_back(number);
    return numbers;
  });
  made["refuse_names"] = Typed([signature](Names names, ffi::Array<ffi::String> given) {
    RefuseNames(*signature, ChoiceOf(*signature, names), StringsOf(given));
  });
  made["refuse_output"] = Typed([signature](Names names, ffi::String output) {
    RefuseOutput(*signature, ChoiceOf(*signature, names), output);
  });
  made["check"] = Typed([signature](int64_t input, ffi::String dtype, ffi::Shape shape) {
    CheckInput(signature->inputs.at(static_cast<size_t>(input)), dtype, shape);
  });
  return ffi::Module(ffi::make_object<FunctionsModule>("tvm_edge.signature", std::move(made)));
}

ffi::Module OpenSession(ffi::Module code, Tensors weights, ffi::String signature,
                        ffi::Shape threads, ffi::Shape cpus, int64_t device_index,
                        ffi::Optional<ffi::Module> artifact) {
  ThreadChoice choice;
  choice.count = threads[0];
  choice.capacity = threads[1];
  choice.spin_ns = threads[2];
  choice.cpus.assign(cpus.begin(), cpus.end());
  std::shared_ptr<Artifact> held;
  if (artifact) {
    held = static_cast<const ArtifactModule*>(artifact.value().get())->artifact;
  }
  return ModuleOf(std::make_shared<Session>(std::move(code), TensorsOf(weights),
                                            ReadSignature(signature), choice, device_index, held));
}

/*! \brief Name, expected and got of the last error of this thread with a message. */
ffi::Array<ffi::String> ErrorDetails(const ffi::String& message) {
  const Details& details = DetailsOf(message);
  return {details.name, details.expected, details.got};
}

/*! \brief Have messages handed to a function of level and message. */
void SetPythonLog(ffi::Function log) {
  static auto* kept = new ffi::Function(log);
  *kept = log;
  SetLog([](void*, const char* level,
            const char* message) { (*kept)(ffi::String(level), ffi::String(message)); },
         nullptr);
}

}  // namespace

void RegisterPythonApi() {
  tvm::ffi::reflection::GlobalDef()
      .def("tvm_edge.runtime.open_artifact",
           [](ffi::String path, bool copy) { return ModuleOf(OpenArtifact(path, copy)); })
      .def("tvm_edge.runtime.open_artifact_fd",
           [](int64_t fd, ffi::String name, bool copy) {
             return ModuleOf(OpenArtifact(static_cast<int>(fd), name, copy));
           })
      .def("tvm_edge.runtime.open_artifact_memory", OpenMemory)
      .def("tvm_edge.runtime.load_code",
           [](ffi::String what, ffi::Bytes content) {
             MemoryFile file("library.so");
             file.Append(content.data(), content.size());
             return LoadLibrary(what, file);
           })
      .def("tvm_edge.runtime.signature", SignatureModule)
      .def("tvm_edge.runtime.session", OpenSession)
      .def("tvm_edge.runtime.error_details", ErrorDetails)
      .def("tvm_edge.runtime.set_log", SetPythonLog)
      .def("tvm_edge.runtime.clear_pools", ClearPools)
      .def("tvm_edge.runtime.drop_recordings", [] { return ShapeRecordings::DropAll(); })
      .def("tvm_edge.runtime.host_features", [] {
        ffi::Array<ffi::String> features;
        for (const std::string& feature : HostFeatures().value_or(std::vector<std::string>{})) {
          features.push_back(feature);
        }
        return features;
      });
}

}  // namespace tvm_edge
