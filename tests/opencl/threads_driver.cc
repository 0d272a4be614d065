/*!
 * \file threads_driver.cc
 * \brief The OpenCL runtime from threads of a C++ program, for ThreadSanitizer.
 *
 * The runtime's files are compiled into it; TVM and the driver are as shipped. It prints "done".
 */
#include <signal.h>
#include <sys/mman.h>
#include <tvm/ffi/any.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "page_guard.h"

extern "C" int TvmEdgeOpenCLRegister();

namespace {
namespace ffi = tvm::ffi;
using tvm::Device;
using tvm::runtime::DeviceAPI;

constexpr int kThreads = 4;
constexpr int kRounds = 60;
constexpr size_t kCount = 64;
const Device kDevice{kDLOpenCL, 0};

void Expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

/*! \brief TVM's serialised form of a module whose kernel adds `number` to 64 floats. */
std::string ModuleBytes(int number) {
  std::string out;
  const auto length = [&out](uint64_t value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto text = [&](const std::string& value) {
    length(value.size());
    out += value;
  };
  text("cl");
  length(1);
  text("add");
  text("add");
  length(2);
  for (int i = 0; i < 2; ++i) out += std::string("\x03\x40\x01\x00", 4);  // handles of 64 bits
  length(2);
  text("blockIdx.x");
  text("threadIdx.x");
  length(0);
  text(
      "// Function: add\n__kernel void add(__global const float* a, __global float* b) {\n"
      "  int i = get_global_id(0);\n  b[i] = a[i] + " +
      std::to_string(number) + ";\n}\n");
  return out;
}

ffi::Function Kernel(int number) {
  const std::string bytes = ModuleBytes(number);
  static const ffi::Function load =
      ffi::Function::GetGlobalRequired("ffi.Module.load_from_bytes.opencl");
  ffi::Module module = load(ffi::Bytes(bytes)).cast<ffi::Module>();
  return module->GetFunction("add").value();
}

/*! \brief A tensor's description over an address; the copies of a device API take no others. */
DLTensor Described(void* data, int64_t* shape, Device device) {
  return DLTensor{data, device, 1, DLDataType{kDLFloat, 32, 1}, shape, nullptr, 0};
}

/*! \brief Allocate, copy, launch, copy back and free; sizes differ, so that pools fill and empty. */
void Compute(DeviceAPI* api, const ffi::Function& shared, int index) {
  ffi::Function own = Kernel(index + 2);
  std::vector<float> host(kCount), back(kCount);
  for (int round = 0; round < kRounds; ++round) {
    const size_t bytes = (kCount * sizeof(float)) << (round + index) % 5;
    void* a = api->AllocDataSpace(kDevice, bytes, 64, {});
    void* b = api->AllocDataSpace(kDevice, bytes, 64, {});
    for (size_t i = 0; i < kCount; ++i) host[i] = static_cast<float>(round + index) + i;
    int64_t shape = kCount;
    DLTensor here = Described(host.data(), &shape, Device{kDLCPU, 0});
    DLTensor there = Described(a, &shape, kDevice), result = Described(b, &shape, kDevice);
    DLTensor out = Described(back.data(), &shape, Device{kDLCPU, 0});
    api->CopyDataFromTo(&here, &there, nullptr);
    const bool mine = round % 2 == 1;
    (mine ? own : shared)(a, b, int64_t{4}, int64_t{16});
    api->CopyDataFromTo(&result, &out, nullptr);
    api->StreamSync(kDevice, nullptr);
    const float added = mine ? static_cast<float>(index + 2) : 1.0f;
    for (size_t i = 0; i < kCount; ++i) Expect(back[i] == host[i] + added, "a sum");
    api->FreeDataSpace(kDevice, a);
    api->FreeDataSpace(kDevice, b);
  }
}

/*! \brief What others do meanwhile: empty the pool, ask for figures, make streams, profile. */
void Disturb(DeviceAPI* api, const std::atomic<bool>& ended) {
  const auto call = [](const char* name) {
    ffi::Function::GetGlobalRequired(std::string("tvm_edge.opencl.") + name)(0);
  };
  while (!ended.load()) {
    for (const char* name : {"release_memory", "memory", "reset_peak", "command_buffers"})
      call(name);
    ffi::Function::GetGlobalRequired("tvm_edge.opencl.program_stats")();
    TVMStreamHandle stream = api->CreateStream(kDevice);
    api->StreamSync(kDevice, stream);
    api->FreeStream(kDevice, stream);
    call("profile_start");
    call("profile_stop");
  }
}

/*! \brief Guards that come and go, with a handler of somebody else's that comes back. */
void Guard(const char* path) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (int round = 0; round < kRounds; ++round) {
    FILE* file = std::fopen(path, "w+");
    Expect(file != nullptr && ftruncate(fileno(file), static_cast<off_t>(2 * page)) == 0, "a file");
    auto* pages = static_cast<volatile char*>(
        mmap(nullptr, 2 * page, PROT_READ, MAP_SHARED, fileno(file), 0));
    void* guard = TvmEdgeGuardPages(const_cast<char*>(pages), 2 * page);
    Expect(ftruncate(fileno(file), static_cast<off_t>(page)) == 0, "a cut");
    Expect(pages[0] == 0 && !TvmEdgePagesLost(guard), "a page that is there");
    Expect(pages[page] == 0 && TvmEdgePagesLost(guard), "a page that was cut away");
    TvmEdgeReleasePages(guard);
    munmap(const_cast<char*>(pages), 2 * page);
    std::fclose(file);
  }
}

std::atomic<int64_t> handed_on{0};

void Others(int, siginfo_t*, void*) { handed_on.fetch_add(1); }

/*! \brief Take SIGBUS, as a driver that compiles does, and have it taken back. */
void Steal(const std::atomic<bool>& ended) {
  static const char byte = 0;
  while (!ended.load()) {
    struct sigaction others{};
    others.sa_sigaction = Others;
    others.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &others, nullptr);
    TvmEdgeReleasePages(TvmEdgeGuardPages(const_cast<char*>(&byte), 1));
    usleep(100);
  }
}

/*! \brief Signals that are for nobody's pages: they go to whoever had the signal before. */
void Send(const std::atomic<bool>& ended) {
  while (!ended.load()) raise(SIGBUS);
}

}  // namespace

int main(int count, char** arguments) {
  Expect(count == 2, "a folder for files");
  TvmEdgeOpenCLRegister();
  auto* api = static_cast<DeviceAPI*>(
      ffi::Function::GetGlobalRequired("device_api.opencl")().cast<void*>());
  api->SetDevice(kDevice);
  const ffi::Function shared = Kernel(1);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(Compute, api, std::cref(shared), i);
  std::thread disturbing(Disturb, api, std::cref(ended));
  std::thread stealing(Steal, std::cref(ended)), sending(Send, std::cref(ended));
  std::vector<std::thread> guarding;
  std::vector<std::string> paths;
  for (int i = 0; i < 2; ++i) {
    paths.push_back(std::string(arguments[1]) + "/pages" + std::to_string(i));
  }
  for (const std::string& path : paths) guarding.emplace_back(Guard, path.c_str());
  for (std::thread& thread : threads) thread.join();
  for (std::thread& thread : guarding) thread.join();
  ended.store(true);
  for (std::thread* thread : {&disturbing, &stealing, &sending}) thread->join();
  Expect(handed_on.load() > 0, "signals of others");
  std::puts("done");
  return 0;
}
