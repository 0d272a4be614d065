// The machine a process runs on: its architecture, CPUs and vector instructions, as Linux tells.
//
// tvm_edge/host.py says the same to the compiler; tests/native/test_host.py holds both together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tvm_edge {

/*! \brief The architecture as LLVM's triples spell it: "x86_64", "aarch64". */
std::string Architecture();

/*! \brief LLVM's names of this CPU's features; nothing where the system does not say. */
std::optional<std::vector<std::string>> HostFeatures();

/*!
 * \brief Refuse code that this CPU cannot execute; running it would end in SIGILL.
 * \throws ffi::Error An ArtifactError or a DeviceUnavailableError.
 */
void CheckHost(const std::string& what, const std::string& architecture,
               const std::vector<std::string>& features);

/*! \brief Logical CPUs that this process may run on, in order. */
std::vector<int> AllowedCpus();

/*! \brief Cores of some CPUs, hyper-threads counted once, within the quota of the process. */
int PhysicalCores(const std::vector<int>& cpus);

/*! \brief Threads of a model, as UseThreads takes them. */
struct ThreadChoice {
  int64_t count = 1;
  std::vector<int> cpus;
  int64_t capacity = 1;
  int64_t spin_ns = 0;
};

/*!
 * \brief Threads of a model.
 * \param num_threads 0: TVM_NUM_THREADS, else all physical cores that the process may use.
 * \param cpus CPUs to keep to; empty: all.
 * \throws ffi::Error An InputError.
 */
ThreadChoice ResolveThreads(int64_t num_threads, const std::vector<int>& cpus);

}  // namespace tvm_edge
