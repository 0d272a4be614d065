// Calls of tvm_edge.h, measured from outside: native_calls MODE MODEL.tvme [COUNT]
//
//   start     from main to the first result, and resident memory then
//   calls     one run after the other; microseconds of each, and growth of memory
//   loads     loading, running and freeing again and again; growth of memory
//
// benchmarks/runtime/native.py compiles and starts it. Prints one JSON object.
#include <tvm_edge/tvm_edge.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/*! \brief KiB of this process. */
long kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::atol(line.c_str() + field.size() + 1);
  }
  return -1;
}

struct Inputs {
  explicit Inputs(const tvm_edge::Model& model) {
    for (const tvm_edge::Spec& spec : model.inputs()) {
      std::vector<int64_t> shape;
      size_t nbytes = spec.dtype.bits / 8;
      for (const tvm_edge::Dim& dim : spec.dims) {
        shape.push_back(dim.length < 0 ? std::max<int64_t>(dim.min, 1) : dim.length);
        nbytes *= static_cast<size_t>(shape.back());
      }
      memory.emplace_back(nbytes + 64);
      // As kernels take it: nothing is copied.
      char* begin = memory.back().data();
      begin += 63 - (reinterpret_cast<uintptr_t>(begin) + 63) % 64;
      tensors.push_back(tvm_edge::tensor(spec.name.c_str(), begin, nbytes, spec.dtype, shape));
    }
  }
  std::vector<std::vector<char>> memory;
  std::vector<tvm_edge_tensor> tensors;
};

void run(const tvm_edge::Model& model, const Inputs& inputs,
         std::vector<tvm_edge_tensor>& outputs) {
  tvm_edge::check(tvm_edge_run(model.handle(), nullptr, inputs.tensors.data(),
                               inputs.tensors.size(), outputs.data(), outputs.size()));
}

std::vector<tvm_edge_tensor> outputs_of(const tvm_edge::Model& model) {
  std::vector<tvm_edge_tensor> outputs(model.outputs().size());
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].name = model.outputs()[i].name.c_str();
  return outputs;
}

void release(std::vector<tvm_edge_tensor>& outputs) {
  for (tvm_edge_tensor& output : outputs) tvm_edge_release(&output);
}

}  // namespace

int main(int, char** arguments) try {
  const Clock::time_point start = Clock::now();
  const std::string mode = arguments[1];
  const int count = arguments[3] ? std::atoi(arguments[3]) : 1;
  tvm_edge::LoadOptions options;
  options.num_threads = mode == "start" ? 0 : 1;
  if (mode == "loads") {
    long before = 0;
    for (int i = 0; i < count; ++i) {
      const tvm_edge::Model model(arguments[2], options);
      const Inputs inputs(model);
      auto outputs = outputs_of(model);
      run(model, inputs, outputs);
      release(outputs);
      if (i == count / 10) before = kib("RssAnon") + kib("RssShmem");
    }
    const long after = kib("RssAnon") + kib("RssShmem");
    std::printf("{\"growth_kib\": %ld, \"of\": %d}\n", after - before, count - count / 10);
    return 0;
  }
  const tvm_edge::Model model(arguments[2], options);
  const double loaded = since(start);
  const Inputs inputs(model);
  auto outputs = outputs_of(model);
  run(model, inputs, outputs);
  if (mode == "start") {
    std::printf("{\"load_ms\": %.2f, \"first_ms\": %.2f, \"peak_kib\": %ld, \"anonymous_kib\": %ld, "
                "\"file_kib\": %ld, \"shared_kib\": %ld}\n",
                loaded / 1e3, since(start) / 1e3, kib("VmHWM"), kib("RssAnon"), kib("RssFile"),
                kib("RssShmem"));
    release(outputs);
    return 0;
  }
  std::vector<double> times(static_cast<size_t>(count));  // what is measured is not its growth
  const int warm = count / 10;
  long before = 0;
  for (int i = 0; i < count; ++i) {
    if (i == warm) before = kib("RssAnon") + kib("RssShmem");
    const Clock::time_point begin = Clock::now();
    run(model, inputs, outputs);
    times[static_cast<size_t>(i)] = since(begin);
  }
  const long after = kib("RssAnon") + kib("RssShmem");
  const double clock = [] {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < 999; ++i) (void)Clock::now();
    return since(begin) / 1000;
  }();
  std::sort(times.begin(), times.end());
  std::printf("{\"median_us\": %.3f, \"min_us\": %.3f, \"clock_us\": %.3f, \"growth_kib\": %ld, "
              "\"of\": %d}\n",
              times[times.size() / 2], times[0], clock, after - before, count - warm);
  release(outputs);
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 4;
}
