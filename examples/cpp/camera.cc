// Frames of a camera, of which the next is taken while one is worked on: camera MODEL.tvme [FRAMES]
//
// The camera here is a loop that fills an array; take yours in its place.
#include <tvm_edge/frames.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t kDepth = 2;  // frames on their way

void take(std::vector<float>* frame, int number) {
  for (size_t i = 0; i < frame->size(); ++i) {
    (*frame)[i] = static_cast<float>((i + static_cast<size_t>(number)) % 255) / 255.0f;
  }
}

}  // namespace

int main(int count, char** arguments) try {
  if (count < 2) {
    std::fprintf(stderr, "usage: camera MODEL.tvme [FRAMES]\n");
    return 2;
  }
  const int frames = count > 2 ? std::atoi(arguments[2]) : 100;
  const tvm_edge::Model model(arguments[1]);
  model.warmup();
  const tvm_edge::Spec& input = model.inputs().at(0);
  std::vector<int64_t> shape;
  size_t size = 1;
  for (const tvm_edge::Dim& dim : input.dims) {
    shape.push_back(dim.length);
    size *= static_cast<size_t>(dim.length);
  }
  std::vector<float> frame(size);
  tvm_edge::Stream stream(model, kDepth);
  int shown = 0;
  const auto show = [&] { shown += stream.pop().size() > 0; };
  const auto start = std::chrono::steady_clock::now();
  for (int number = 0; number < frames; ++number) {
    take(&frame, number);
    if (stream.size() == kDepth) show();
    stream.push({tvm_edge::input(input.name.c_str(), frame, shape)});  // copied: it is ours again
  }
  while (stream.size()) show();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%d frames, %.1f a second\n", shown, shown / took.count());
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 4;
}
