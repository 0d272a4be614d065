// Pictures for the examples: binary PPM files, which any tool writes (convert photo.jpg photo.ppm).
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Picture {
  int width = 0, height = 0;
  std::vector<unsigned char> rgb;  // rows from the top

  static Picture read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string kind;
    int largest = 0;
    Picture made;
    if (!(file >> kind >> made.width >> made.height >> largest) || kind != "P6" || largest != 255 ||
        made.width <= 0 || made.height <= 0 || made.width > 1 << 15 || made.height > 1 << 15) {
      throw std::runtime_error(path + " is no PPM picture (P6); run: convert photo.jpg photo.ppm");
    }
    file.get();
    made.rgb.resize(size_t{3} * static_cast<size_t>(made.width) * static_cast<size_t>(made.height));
    if (!file.read(reinterpret_cast<char*>(made.rgb.data()),
                   static_cast<std::streamsize>(made.rgb.size()))) {
      throw std::runtime_error(path + " ends before its last row");
    }
    return made;
  }

  /*! \brief Channels first, of a size, each value (rgb / 255 - mean) / deviation. */
  std::vector<float> planes(int wanted_height, int wanted_width, const float (&mean)[3],
                            const float (&deviation)[3]) const {
    const size_t area = static_cast<size_t>(wanted_height) * static_cast<size_t>(wanted_width);
    std::vector<float> made(3 * area);
    for (int y = 0; y < wanted_height; ++y) {
      for (int x = 0; x < wanted_width; ++x) {
        const size_t from = 3 * (static_cast<size_t>(y * height / wanted_height) *
                                     static_cast<size_t>(width) +
                                 static_cast<size_t>(x * width / wanted_width));
        const size_t to = static_cast<size_t>(y) * static_cast<size_t>(wanted_width) +
                          static_cast<size_t>(x);
        for (size_t c = 0; c < 3; ++c) {
          made[c * area + to] = (rgb[from + c] / 255.0f - mean[c]) / deviation[c];
        }
      }
    }
    return made;
  }
};
