// The five best classes of a picture: classify MODEL.tvme PICTURE.ppm
#include <tvm_edge/tvm_edge.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "picture.h"

int main(int count, char** arguments) try {
  if (count != 3) {
    std::fprintf(stderr, "usage: classify MODEL.tvme PICTURE.ppm\n");
    return 2;
  }
  const tvm_edge::Model model(arguments[1]);
  const tvm_edge::Spec& input = model.inputs().at(0);
  const int64_t height = input.dims.at(2).length, width = input.dims.at(3).length;
  const auto image = Picture::read(arguments[2])
                         .planes(static_cast<int>(height), static_cast<int>(width),
                                 {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f});
  const auto outputs =
      model.run({tvm_edge::input(input.name.c_str(), image, {1, 3, height, width})});
  const float* scores = outputs[0].data<float>();
  std::vector<size_t> order(outputs[0].size());
  std::iota(order.begin(), order.end(), 0);
  const size_t best = std::min<size_t>(5, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(best), order.end(),
                    [scores](size_t a, size_t b) { return scores[a] > scores[b]; });
  for (size_t i = 0; i < best; ++i) std::printf("class %zu: %.4f\n", order[i], scores[order[i]]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 4;
}
