/* cub::DeviceSegmentedSort::StableSortPairs on one list of segments; sorting_models.py builds it.
 *
 *   cub_segmented_sort KEYS OFFSETS SORTED CALLS ROUNDS SECONDS
 *
 * KEYS are float32 and OFFSETS int32 in files; positions of the sorted keys go to SORTED, int32.
 * Keys, positions and temporary memory are on the device before anything is timed. Prints one JSON
 * object: event_us, microseconds a call by CUDA's events around CALLS calls, ROUNDS times; host_us,
 * the median time of one call and a synchronisation, over SECONDS and at least 5 calls.
 */
#include <cub/cub.cuh>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#define CHECK(call)                                                              \
  do {                                                                           \
    cudaError_t status = (call);                                                 \
    if (status != cudaSuccess) {                                                 \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));       \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)

template <typename T>
static std::vector<T> read_file(const char *path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path);
    std::exit(1);
  }
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char *>(values.data()), values.size() * sizeof(T));
  return values;
}

template <typename T>
static T *on_device(const std::vector<T> &values) {
  T *memory = nullptr;
  CHECK(cudaMalloc(&memory, std::max<size_t>(1, values.size()) * sizeof(T)));
  CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

int main(int argc, char **argv) {
  if (argc != 7) return 2;
  const int calls = std::atoi(argv[4]), rounds = std::atoi(argv[5]);
  const double seconds = std::atof(argv[6]);
  std::vector<float> host_keys = read_file<float>(argv[1]);
  std::vector<int> host_offsets = read_file<int>(argv[2]), host_positions(host_keys.size());
  std::iota(host_positions.begin(), host_positions.end(), 0);
  const int items = static_cast<int>(host_keys.size());
  const int segments = static_cast<int>(host_offsets.size()) - 1;

  float *keys = on_device(host_keys), *keys_out = on_device(host_keys);
  int *positions = on_device(host_positions), *offsets = on_device(host_offsets);
  int *positions_out = on_device(std::vector<int>(host_keys.size()));
  void *memory = nullptr;
  size_t bytes = 0;
  auto sort = [&] {
    CHECK(cub::DeviceSegmentedSort::StableSortPairs(memory, bytes, keys, keys_out, positions,
                                                    positions_out, items, segments, offsets,
                                                    offsets + 1));
  };
  sort(); /* only asks for the bytes */
  CHECK(cudaMalloc(&memory, std::max<size_t>(1, bytes)));
  for (int i = 0; i < calls; ++i) sort();
  CHECK(cudaDeviceSynchronize());

  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  std::printf("{\"event_us\": [");
  for (int round = 0; round < rounds; ++round) {
    CHECK(cudaEventRecord(start));
    for (int i = 0; i < calls; ++i) sort();
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    std::printf("%s%.4f", round ? ", " : "", milliseconds * 1e3 / calls);
  }

  using clock = std::chrono::steady_clock;
  std::vector<double> samples;
  const clock::time_point begin = clock::now();
  while (samples.size() < 5 ||
         std::chrono::duration<double>(clock::now() - begin).count() < seconds) {
    const clock::time_point before = clock::now();
    sort();
    CHECK(cudaDeviceSynchronize());
    samples.push_back(std::chrono::duration<double, std::micro>(clock::now() - before).count());
  }
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  std::printf("], \"host_us\": %.4f}\n", samples[samples.size() / 2]);

  CHECK(cudaMemcpy(host_positions.data(), positions_out, host_positions.size() * sizeof(int),
                   cudaMemcpyDeviceToHost));
  std::ofstream(argv[3], std::ios::binary)
      .write(reinterpret_cast<const char *>(host_positions.data()),
             host_positions.size() * sizeof(int));
  return 0;
}
