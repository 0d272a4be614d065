// Runs the model of a bundle: the program that `tvm-edge bundle` writes beside it.
//
//   ./run [--inputs FOLDER] [--outputs FOLDER] [--repeat N] [--threads N] [--device NAME] [MODEL]
//
// A file NAME.bin of the inputs' folder has the elements of an input, in order; inputs without one
// are zeros. Slashes in names are written as "_".
#include <tvm_edge/tvm_edge.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

std::string file_of(const std::string& folder, std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  return folder + "/" + name + ".bin";
}

std::string folder_of_program() {
  char path[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  const std::string whole(path, length > 0 ? static_cast<size_t>(length) : 0);
  return whole.substr(0, whole.rfind('/'));
}

struct Input {
  std::vector<char> data;
  std::vector<int64_t> shape;
};

/*! \brief Values from a file, or zeros; open dimensions are as short as they may be. */
Input read_input(const tvm_edge::Spec& spec, const std::string& folder) {
  Input input;
  size_t nbytes = spec.dtype.bits / 8;
  for (const tvm_edge::Dim& dim : spec.dims) {
    input.shape.push_back(dim.length >= 0 ? dim.length : std::max<int64_t>(dim.min, 1));
    nbytes *= static_cast<size_t>(input.shape.back());
  }
  if (!folder.empty()) {
    std::ifstream file(file_of(folder, spec.name), std::ios::binary);
    if (file) input.data.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (input.data.empty()) input.data.resize(nbytes);
  return input;
}

int run(const std::map<std::string, std::string>& options, const std::string& path) {
  const auto option = [&options](const char* name) {
    const auto found = options.find(name);
    return found == options.end() ? std::string() : found->second;
  };
  tvm_edge::LoadOptions load;
  load.device = option("--device");
  load.num_threads = std::atoi(option("--threads").c_str());
  const tvm_edge::Model model(path, load);
  std::vector<Input> values;
  std::vector<tvm_edge_tensor> inputs;
  values.reserve(model.inputs().size());
  for (const tvm_edge::Spec& spec : model.inputs()) {
    values.push_back(read_input(spec, option("--inputs")));
    const Input& input = values.back();
    inputs.push_back(tvm_edge::tensor(spec.name.c_str(), input.data.data(), input.data.size(),
                                      spec.dtype, input.shape));
  }
  const tvm_edge::Outputs outputs = model.run(inputs);
  for (const tvm_edge::Output& output : outputs) {
    std::printf("%s:", output.name().c_str());
    for (int64_t length : output.shape()) std::printf(" %lld", static_cast<long long>(length));
    std::printf(" (%zu bytes)\n", output.nbytes());
    if (option("--outputs").empty()) continue;
    std::ofstream file(file_of(option("--outputs"), output.name()), std::ios::binary);
    file.write(static_cast<const char*>(output.tensor().data),
               static_cast<std::streamsize>(output.nbytes()));
    if (!file.flush()) throw std::runtime_error("cannot write to " + option("--outputs"));
  }
  std::vector<double> times;
  for (int i = std::atoi(option("--repeat").c_str()); i > 0; --i) {
    const auto start = std::chrono::steady_clock::now();
    model.run(inputs);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  if (!times.empty()) {
    std::sort(times.begin(), times.end());
    std::printf("median of %zu runs: %.3f ms\n", times.size(), times[times.size() / 2]);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) try {
  std::map<std::string, std::string> options;
  std::string path = folder_of_program() + "/model.tvme";
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word.rfind("--", 0) != 0) {
      path = word;
    } else if (i + 1 < count) {
      options[word] = arguments[++i];
    } else {
      std::fprintf(stderr, "%s wants a value\n", arguments[i]);
      return 2;
    }
  }
  return run(options, path);
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 4;
}
