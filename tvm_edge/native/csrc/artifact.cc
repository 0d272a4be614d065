#include "artifact.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <new>
#include <system_error>
#include <utility>

#include "byte_source.h"
#include "error.h"
#include "sha256.h"
#include "tensors.h"
#include "text.h"
#include "zip_archive.h"

namespace tvm_edge {
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kLibrary = "library.so";
constexpr const char* kWeights = "weights.bin";
constexpr const char* kPrograms = "programs.bin";
constexpr const char* kSmaller = "smaller.so";
constexpr const char* kAdvice = "copy or export it again";
constexpr uint64_t kMostManifest = 256 << 20;

/*! \brief Where the weights are to be, once they are checked. */
struct Place {
  std::shared_ptr<MappedFile> mapping;
  char* data = nullptr;
  std::shared_ptr<void> owner;
};

class Reader {
 public:
  Reader(const ByteSource& source, Artifact* artifact) : source_(source), artifact_(artifact) {
    members_ = StoredMembers(source);
    for (const char* name : {kManifest, kLibrary, kWeights}) {
      if (!members_.count(name)) throw Damage("it has no " + std::string(name));
    }
    const Member& manifest = members_[kManifest];
    if (manifest.content.nbytes > kMostManifest) throw Damage("the manifest is too long");
    artifact_->manifest = source.ReadAll(manifest.content);
    if (Crc32(artifact_->manifest) != manifest.checksum) {
      throw Damage("the checksum of manifest.json does not match");
    }
  }

  Span weights() const { return members_.at(kWeights).content; }

  /*! \brief Read the manifest, and check all that it has checksums of. */
  void ReadMembers(char* copy_of_weights) {
    manifest_ = JsonValue::Parse(artifact_->manifest);
    const JsonValue& manifest = *manifest_;
    CheckFormat(manifest);
    checksums_ = manifest.At("checksums").Fields();
    artifact_->library = ReadCode(kLibrary);
    if (members_.count(kSmaller)) artifact_->smaller = ReadCode(kSmaller);
    if (members_.count(kPrograms)) {
      artifact_->programs.reserve(members_[kPrograms].content.nbytes);
      Check(kPrograms, [this](const char* data, size_t nbytes) {
        artifact_->programs.append(data, nbytes);
      });
    }
    Check(kWeights, [&copy_of_weights](const char* data, size_t nbytes) {
      if (copy_of_weights == nullptr) return;
      std::memcpy(copy_of_weights, data, nbytes);
      copy_of_weights += nbytes;
    });
    CheckVersions(manifest);
    ReadSignature(manifest);
  }

  /*! \brief Make the weights' tensors over memory that holds weights.bin. */
  void MakeWeights(const Place& place) {
    for (const JsonValue& entry : manifest_->At("weights").Items()) {
      artifact_->weights.push_back(WeightOf(entry, place));
    }
    if (artifact_->weights.size() != artifact_->signature.devices.weights.size()) {
      throw Damage("the plan of devices does not fit " +
                   std::to_string(artifact_->weights.size()) + " weights");
    }
  }

 private:
  void CheckFormat(const JsonValue& manifest) const {
    auto format = manifest.Find("format");
    if (!format || !format->IsString() || format->String() != "tvm-edge") {
      ThrowArtifact(Quoted(artifact_->path) + " is a ZIP file but no tvm-edge artifact; " +
                    kAdvice);
    }
    const int64_t version = manifest.At("format_version").Integer();
    if (version == kFormatVersion) return;
    auto versions = manifest.Find("versions");
    auto wrote = versions ? versions->Find("tvm_edge") : std::nullopt;
    ThrowArtifact("the artifact " + Quoted(artifact_->path) + " has format " +
                  std::to_string(version) + ", and this tvm-edge reads " +
                  std::to_string(kFormatVersion) +
                  "; export it again with this version, or install the version " +
                  (wrote ? wrote->String() : "that wrote it"));
  }

  void CheckVersions(const JsonValue& manifest) const {
    auto versions = manifest.Find("versions");
    auto tvm = versions ? versions->Find("tvm") : std::nullopt;
    const std::string wrote = tvm ? tvm->String() : "None";
    if (wrote == TVM_EDGE_TVM_VERSION) return;
    ThrowArtifact("the artifact " + Quoted(artifact_->path) + " was made with TVM " + wrote +
                  ", and this is TVM " TVM_EDGE_TVM_VERSION "; run: pip install apache-tvm==" +
                  wrote + ", or export it again");
  }

  void ReadSignature(const JsonValue& manifest) const try {
    artifact_->signature = Signature::Read(manifest);
  } catch (const Damage& damage) {
    ThrowArtifact("the manifest of " + Quoted(artifact_->path) + " is damaged (" +
                  OneLine(damage.what()) + "); export it again");
  }

  void Check(const char* name, const std::function<void(const char*, size_t)>& use) const {
    Sha256 digest;
    source_.ForEachChunk(members_.at(name).content, [&](const char* data, size_t nbytes) {
      digest.Update(data, nbytes);
      use(data, nbytes);
    });
    const std::string found = digest.Finish();
    for (const auto& [member, expected] : checksums_) {
      if (member == name && expected.IsString() && expected.String() == found) return;
    }
    ThrowArtifact("the artifact " + Quoted(artifact_->path) +
                  " was altered: the checksum of " + name + " does not match; " + kAdvice);
  }

  std::shared_ptr<MemoryFile> ReadCode(const char* name) const {
    auto file = std::make_shared<MemoryFile>(name);
    Check(name, [&file](const char* data, size_t nbytes) { file->Append(data, nbytes); });
    return file;
  }

  Tensor WeightOf(const JsonValue& entry, const Place& place) const {
    std::vector<int64_t> shape;
    uint64_t nbytes = 1;
    const DLDataType dtype = TypeOf(entry.At("dtype").String());
    nbytes = static_cast<uint64_t>(ItemBytes(dtype));
    for (const JsonValue& item : entry.At("shape").Items()) {
      shape.push_back(item.Integer());
      if (shape.back() < 0 || __builtin_mul_overflow(nbytes, shape.back(), &nbytes)) {
        throw Damage("the shape of a weight is no shape");
      }
    }
    const int64_t offset = entry.At("offset").Integer();
    const int64_t said = entry.At("nbytes").Integer();
    const uint64_t length = weights().nbytes;
    if (offset < 0 || said < 0 || static_cast<uint64_t>(said) > length ||
        static_cast<uint64_t>(offset) > length - static_cast<uint64_t>(said)) {
      throw Damage("a weight lies outside weights.bin");
    }
    if (static_cast<uint64_t>(said) != nbytes) throw Damage("a weight has another size");
    if (nbytes == 0) return Tensor::Empty(ffi::Shape(shape.begin(), shape.end()), dtype, kCpu);
    Tensor weight = Over(place.data + offset, ffi::ShapeView(shape.data(), shape.size()), dtype, kCpu,
                         place.owner);
    if (IsAligned(weight->data)) return weight;
    Tensor copy = HostCopy(*weight.operator->());  // of a file that was packed again
    if (place.mapping) place.mapping->Drop(weight->data, nbytes);
    return copy;
  }

  const ByteSource& source_;
  Artifact* artifact_;
  std::map<std::string, Member> members_;
  std::optional<JsonValue> manifest_;
  std::vector<std::pair<std::string, JsonValue>> checksums_;
};

/*! \brief Memory of the system, which begins on a page. */
Place Allocate(size_t nbytes) {
  const size_t size = std::max<size_t>(nbytes, 1);
  void* data =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  std::shared_ptr<void> owner(data, [size](void* memory) { munmap(memory, size); });
  return {nullptr, static_cast<char*>(data), owner};
}

std::string Damaged(const std::string& path, const char* what) {
  return Quoted(path) + " is not a tvm-edge artifact, or is truncated or damaged (" +
         OneLine(what) + "); " + kAdvice;
}

/*! \brief Read, and say what went wrong in words of artifacts. */
template <typename Read>
std::shared_ptr<Artifact> Opened(const std::string& path, const Read& read) {
  auto artifact = std::make_shared<Artifact>();
  artifact->path = path;
  try {
    read(artifact.get());
  } catch (const Damage& damage) {
    ThrowArtifact(Damaged(path, damage.what()));
  } catch (const std::system_error& error) {
    ThrowArtifact("cannot read the artifact " + Quoted(path) + ": " +
                  std::strerror(error.code().value()) + "; check the path");
  } catch (const std::bad_alloc&) {
    Throw(kMemoryError, "there is no memory for the artifact " + Quoted(path));
  }
  return artifact;
}

}  // namespace

void Artifact::Release(size_t index) const {
  const Tensor& weight = weights.at(index);
  const auto* data = static_cast<const char*>(weight->data);
  if (mapping && data >= mapping->data() && data < mapping->data() + mapping->nbytes()) {
    mapping->Drop(data, BytesOf(weight));
  }
}

std::shared_ptr<Artifact> OpenArtifact(int fd, const std::string& path, bool copy) {
  return Opened(path, [&](Artifact* artifact) {
    const struct stat status = SettledStatus(fd, path);
    if (!S_ISREG(status.st_mode)) {
      throw std::system_error(S_ISDIR(status.st_mode) ? EISDIR : ESPIPE, std::generic_category());
    }
    if (status.st_size == 0) {
      ThrowArtifact("the artifact " + Quoted(path) + " is empty; " + kAdvice);
    }
    const FileSource source(fd, static_cast<uint64_t>(status.st_size));
    Reader reader(source, artifact);
    if (copy) {
      const Place place = Allocate(reader.weights().nbytes);
      reader.ReadMembers(place.data);
      reader.MakeWeights(place);
      return;
    }
    reader.ReadMembers(nullptr);
    artifact->mapping = MappedFile::Map(fd, path, status);
    reader.MakeWeights({artifact->mapping,
                        const_cast<char*>(artifact->mapping->data()) + reader.weights().begin,
                        artifact->mapping});
    artifact->mapping->Check();
  });
}

std::shared_ptr<Artifact> OpenArtifact(const std::string& path, bool copy) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    ThrowArtifact("cannot read the artifact " + Quoted(path) + ": " + std::strerror(errno) +
                  "; check the path");
  }
  const std::shared_ptr<void> closed(nullptr, [fd](void*) { close(fd); });
  return OpenArtifact(fd, path, copy);
}

std::shared_ptr<Artifact> OpenArtifact(const void* data, size_t nbytes,
                                       std::shared_ptr<void> owner, bool copy) {
  return Opened("memory", [&](Artifact* artifact) {
    if (nbytes == 0) ThrowArtifact("the artifact 'memory' is empty; " + std::string(kAdvice));
    const MemorySource source(data, nbytes);
    Reader reader(source, artifact);
    if (copy) {
      const Place place = Allocate(reader.weights().nbytes);
      reader.ReadMembers(place.data);
      reader.MakeWeights(place);
      return;
    }
    reader.ReadMembers(nullptr);
    char* begin = const_cast<char*>(static_cast<const char*>(data)) + reader.weights().begin;
    reader.MakeWeights({nullptr, begin, std::move(owner)});
  });
}

}  // namespace tvm_edge
