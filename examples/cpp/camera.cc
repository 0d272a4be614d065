// Frames of a camera, of which the next is taken while one is worked on: camera MODEL.tvme [FRAMES]
//
// The camera here is a loop that fills an array; take yours in its place.
#include <tvm_edge/tvm_edge.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>

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
  std::deque<tvm_edge::Pending> on_their_way;
  int shown = 0;
  const auto show = [&] {
    const tvm_edge::Outputs outputs = on_their_way.front().get();
    on_their_way.pop_front();
    shown += outputs.size() > 0;
  };
  const auto start = std::chrono::steady_clock::now();
  for (int number = 0; number < frames; ++number) {
    take(&frame, number);  // the array is ours again: inputs are copied
    on_their_way.push_back(model.run_async({tvm_edge::input(input.name.c_str(), frame, shape)}));
    if (on_their_way.size() == kDepth) show();
  }
  while (!on_their_way.empty()) show();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%d frames, %.1f a second\n", shown, shown / took.count());
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 4;
}
