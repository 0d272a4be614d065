// What the OpenCL driver itself needs for a pipelined launch of a tiny kernel: the floor under
// benchmarks/runtime/opencl_runtime.py, which compiles this with the runtime's own library.cc.
// Usage: opencl_floor PLATFORM_INDEX DEVICE_INDEX LAUNCHES
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "library.h"

using namespace tvm_edge::opencl;

int main(int argc, char** argv) {
  if (argc != 4 || !cl().loaded()) return 2;
  const int platform_index = std::atoi(argv[1]), device_index = std::atoi(argv[2]);
  const int launches = std::atoi(argv[3]);
  std::vector<cl_platform_id> platforms(platform_index + 1);
  std::vector<cl_device_id> devices(device_index + 1);
  cl().clGetPlatformIDs(platforms.size(), platforms.data(), nullptr);
  cl().clGetDeviceIDs(platforms[platform_index], CL_DEVICE_TYPE_ALL, devices.size(),
                      devices.data(), nullptr);
  cl_device_id device = devices[device_index];
  cl_int status = 0;
  cl_context context = cl().clCreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
  if (context == nullptr) {
    std::fprintf(stderr, "no context (%d)\n", status);
    return 3;
  }
  cl_command_queue queue = cl().clCreateCommandQueue(context, device, 0, &status);
  const char* source =
      "__kernel void add_one(__global const float* x, __global float* y) {"
      "  y[get_global_id(0)] = x[get_global_id(0)] + 1.0f; }";
  cl_program program = cl().clCreateProgramWithSource(context, 1, &source, nullptr, &status);
  status = cl().clBuildProgram(program, 1, &device, "", nullptr, nullptr);
  if (status != CL_SUCCESS) {
    char log[4096] = "";
    cl().clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof(log), log, nullptr);
    std::fprintf(stderr, "the kernel does not build (%d): %s\n", status, log);
    return 3;
  }
  cl_kernel kernel = cl().clCreateKernel(program, "add_one", &status);
  cl_mem x = cl().clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, nullptr, &status);
  cl_mem y = cl().clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, nullptr, &status);
  const size_t global = 1024, local = 64;
  double seconds = 0;
  for (int round = 0; round < 2; ++round) {  // the first warms up
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) {
      cl().clSetKernelArg(kernel, 0, sizeof(x), &x);
      cl().clSetKernelArg(kernel, 1, sizeof(y), &y);
      cl().clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &global, &local, 0, nullptr, nullptr);
    }
    cl().clFinish(queue);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::printf("%g\n", seconds / launches * 1e6);
  return 0;
}
