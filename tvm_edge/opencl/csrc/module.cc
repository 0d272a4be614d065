#include "module.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
namespace {

constexpr const char* kKernelMark = "// Function: ";

/*! \brief Kernel names and sources, in order: each follows a line with the mark and its name. */
std::vector<KernelSource> SplitKernels(std::string_view code) {
  std::vector<KernelSource> kernels;
  const size_t mark_size = std::strlen(kKernelMark);
  size_t mark = code.find(kKernelMark);
  while (mark != std::string::npos) {
    const size_t name = mark + mark_size;
    const size_t line_end = std::min(code.find('\n', name), code.size());
    mark = code.find(kKernelMark, line_end);
    kernels.push_back({std::string(code.substr(name, line_end - name)),
                       std::string(code.substr(line_end, mark - line_end))});
  }
  return kernels;
}

/*!
 * \brief The modules that are alive, to tell ours from TVM's stand-in of the same kind.
 *
 * dynamic_cast would not do: parts of TVM are built without type information.
 */
struct LiveModules {
  std::mutex mutex;
  std::set<const ffi::ModuleObj*> modules;

  static LiveModules& Global() {
    static auto* live = new LiveModules();
    return *live;
  }
};

}  // namespace

OpenCLModule::OpenCLModule(ffi::Bytes code, ffi::String format, FunctionTable functions,
                           SourceTable sources)
    : code_(std::move(code)),
      format_(std::move(format)),
      functions_(std::move(functions)),
      sources_(std::move(sources)) {
  if (format_ != "cl") {
    TVM_FFI_THROW(ValueError) << "An OpenCL module of format '" << format_
                              << "': this runtime takes OpenCL C source ('cl')";
  }
  const auto split =
      std::make_shared<const std::vector<KernelSource>>(SplitKernels({code_.data(), code_.size()}));
  for (size_t i = 0; i < split->size(); ++i) {
    const std::string& name = (*split)[i].name;
    const ffi::Optional<tvm::runtime::FunctionInfo> info = functions_.Get(name);
    if (!info.has_value()) {
      TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << name
                                << "' is in the source but not in the module's function table";
    }
    auto kernel = std::make_shared<KernelFunction>(split, i, info.value());
    by_name_[name] = kernel;
    kernels_.push_back(std::move(kernel));
  }
  for (const auto& [name, info] : functions_) {
    if (by_name_.count(name) == 0) {
      TVM_FFI_THROW(ValueError) << "OpenCL kernel '" << name << "' has no source after a line '"
                                << kKernelMark << name << "'";
    }
  }
  LiveModules& live = LiveModules::Global();
  std::lock_guard<std::mutex> lock(live.mutex);
  live.modules.insert(this);
}

OpenCLModule::~OpenCLModule() {
  LiveModules& live = LiveModules::Global();
  std::lock_guard<std::mutex> lock(live.mutex);
  live.modules.erase(this);
}

ffi::Optional<ffi::Function> OpenCLModule::GetFunction(const ffi::String& name) {
  auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  // Shares the kernel, so that a function outlives its module.
  return ffi::Function::FromPacked(
      [kernel = found->second](ffi::PackedArgs args, ffi::Any*) { kernel->Launch(args); });
}

ffi::String OpenCLModule::InspectSource(const ffi::String& format) const {
  if (auto found = sources_.find(format); found != sources_.end()) return (*found).second;
  if (!format.empty() && format != "cl") return "";
  if (auto found = sources_.find("cl"); found != sources_.end()) return (*found).second;
  return ffi::String(code_.data(), code_.size());
}

namespace {

/*! \brief Appends to a string, or reads bytes of somebody else's from the beginning. */
class StringStream : public tvm::support::Stream {
 public:
  explicit StringStream(std::string_view given = "") : given_(given) {}
  using Stream::Read;
  using Stream::Write;
  size_t Read(void* data, size_t size) final {
    const size_t taken = std::min(size, given_.size());
    std::memcpy(data, given_.data(), taken);
    given_.remove_prefix(taken);
    return taken;
  }
  size_t Write(const void* data, size_t size) final {
    written_.append(static_cast<const char*>(data), size);
    return size;
  }
  std::string Take() { return std::move(written_); }

 private:
  std::string_view given_;
  std::string written_;
};

}  // namespace

ffi::Bytes OpenCLModule::SaveToBytes() const {
  StringStream stream;
  stream.Write(format_);
  stream.Write(functions_);
  stream.Write(code_);
  return ffi::Bytes(stream.Take());
}

ffi::Module OpenCLModule::LoadFromBytes(const ffi::Bytes& bytes) {
  StringStream stream({bytes.data(), bytes.size()});
  ffi::String format;
  FunctionTable functions;
  ffi::Bytes code;
  if (!stream.Read(&format) || !stream.Read(&functions) || !stream.Read(&code)) {
    TVM_FFI_THROW(ValueError) << "The bytes of an OpenCL module end too early";
  }
  return ffi::Module(ffi::make_object<OpenCLModule>(std::move(code), std::move(format),
                                                    std::move(functions), SourceTable()));
}

ffi::Module OpenCLModule::Join(const ffi::Array<ffi::Module>& modules) {
  std::string code;
  FunctionTable functions;
  for (const ffi::Module& module : modules) {
    const std::vector<const OpenCLModule*> found = FindOpenCLModules(module);
    if (found.size() != 1 || static_cast<const ffi::ModuleObj*>(found[0]) != module.operator->()) {
      TVM_FFI_THROW(TypeError) << "A module of kind '" << module->kind()
                               << "' cannot be joined with OpenCL modules";
    }
    code.append(found[0]->code_.data(), found[0]->code_.size());
    for (const auto& [name, info] : found[0]->functions_) functions.Set(name, info);
  }
  return ffi::Module(ffi::make_object<OpenCLModule>(ffi::Bytes(code), "cl", std::move(functions),
                                                    SourceTable({{"cl", ffi::String(code)}})));
}

std::vector<const OpenCLModule*> FindOpenCLModules(const ffi::Module& root) {
  LiveModules& live = LiveModules::Global();
  std::lock_guard<std::mutex> lock(live.mutex);
  std::vector<const OpenCLModule*> found;
  std::set<const ffi::ModuleObj*> seen;
  std::vector<ffi::Module> open{root};
  while (!open.empty()) {
    const ffi::Module module = open.back();
    open.pop_back();
    if (!seen.insert(module.operator->()).second) continue;
    if (live.modules.count(module.operator->()) != 0) {
      found.push_back(static_cast<const OpenCLModule*>(module.operator->()));
    }
    for (const ffi::Any& imported : module->imports()) open.push_back(imported.cast<ffi::Module>());
  }
  return found;
}

}  // namespace tvm_edge::opencl
