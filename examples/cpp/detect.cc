// Objects of a picture by zoo:shapes_ssd: detect MODEL.tvme PICTURE.ppm
#include <tvm_edge/tvm_edge.hpp>

#include <cstdio>

#include "picture.h"

int main(int count, char** arguments) try {
  if (count != 3) {
    std::fprintf(stderr, "usage: detect MODEL.tvme PICTURE.ppm\n");
    return 2;
  }
  const tvm_edge::Model model(arguments[1]);
  const tvm_edge::Spec& input = model.inputs().at(0);
  const int64_t height = input.dims.at(2).length, width = input.dims.at(3).length;
  const Picture picture = Picture::read(arguments[2]);
  const auto image = picture.planes(static_cast<int>(height), static_cast<int>(width), {0, 0, 0},
                                    {1, 1, 1});
  const auto outputs =
      model.run({tvm_edge::input(input.name.c_str(), image, {1, 3, height, width})});
  // How many there are, the run says.
  const tvm_edge::Output& scores = outputs["scores"];
  const float* boxes = outputs["boxes"].data<float>();
  const int64_t* classes = outputs["classes"].data<int64_t>();
  for (size_t i = 0; i < scores.size(); ++i) {
    std::printf("class %lld, score %.3f, box %.3f %.3f %.3f %.3f\n",
                static_cast<long long>(classes[i]), scores.data<float>()[i], boxes[4 * i],
                boxes[4 * i + 1], boxes[4 * i + 2], boxes[4 * i + 3]);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 4;
}
