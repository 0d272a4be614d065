// Programs and kernels of a device: each kernel source is built once, whoever uses it.
#ifndef TVM_EDGE_OPENCL_PROGRAM_H_
#define TVM_EDGE_OPENCL_PROGRAM_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"

namespace tvm_edge::opencl {

class Device;

/*! \brief A kernel's name and its OpenCL C. */
struct KernelSource {
  std::string name, source;
};

/*! \brief Those of a module. They are megabytes: all who need them share them. */
using KernelSources = std::shared_ptr<const std::vector<KernelSource>>;

/*!
 * \brief The kernels of a module as one program of a device, built when one is first needed.
 *
 * One, because drivers spend more on a program than on a kernel: pocl builds 20 small kernels in
 * 0.15 s together and in 4.2 s one by one.
 */
class Program {
 public:
  Program(Device* device, KernelSources kernels);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /*!
   * \brief The built program: from memory, from the disk, or from source.
   *
   * Throws RuntimeError with the kernel's name if it does not build. Null if several do not build
   * together: one is broken, or two define a helper of one name. Each is to be built alone then.
   */
  cl_program Build();
  /*! \brief The driver's binary of the built program; empty if it gives none. */
  std::string Binary();
  /*! \brief All that a binary depends on: the source, the options, the device and its driver. */
  std::string Key() const;

  const KernelSources& kernels() const { return kernels_; }

 private:
  /*! \brief That of all kernels, after one another. */
  std::string Source() const;
  cl_program FromBinary(const std::string& binary) noexcept;
  /*! \brief Compile; on failure null, with the driver's words in `log`. */
  cl_program FromSource(cl_int* status, std::string* log);
  std::string ReadBinary(cl_program program);

  Device* device_;
  const KernelSources kernels_;
  std::mutex mutex_;  // guards what follows
  cl_program program_ = nullptr;
  bool fails_together_ = false;
};

/*! \brief A kernel object, and the lock that makes setting its arguments and launching it one. */
struct Kernel {
  Kernel(Device* device, std::shared_ptr<Program> program, const std::string& name);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /*!
   * \brief Set an argument unless it has this value; under `mutex`.
   *
   * In a network each kernel gets the same buffers in every run, and drivers spend a tenth of a
   * launch on setting them.
   */
  cl_int SetArgument(cl_uint index, size_t bytes, const void* value, bool is_svm = false);
  /*! \brief Forget what was set if memory went meanwhile: its address may mean another block. */
  void ForgetStaleArguments();

  /*! \brief A limit or size of the kernel on its device. */
  size_t Info(cl_info which) const;
  /*! \brief The work-group size its source requires; zeros if it requires none. */
  std::vector<size_t> RequiredWorkGroupSize() const;

  Device* const device;
  const std::shared_ptr<Program> program;
  cl_kernel handle = nullptr;
  std::mutex mutex;

 private:
  struct Argument {
    bool known = false;
    uint64_t value = 0;
  };
  std::vector<Argument> arguments_;
  uint64_t generation_ = 0;  // of the memory that arguments_ name
};

/*! \brief The programs of a device that somebody holds. */
class Programs {
 public:
  explicit Programs(Device* device) : device_(device) {}

  /*! \brief The program of some kernels, shared with everyone who asks for the same ones. */
  std::shared_ptr<Program> Get(const KernelSources& kernels);
  /*! \brief Called by a program that goes. */
  void Forget(const Program* program);

 private:
  struct BySource {
    bool operator()(const std::vector<KernelSource>* a, const std::vector<KernelSource>* b) const;
  };

  Device* device_;
  std::mutex mutex_;
  // The programs hold what the keys point to.
  std::map<const std::vector<KernelSource>*, std::weak_ptr<Program>, BySource> live_;
};

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_PROGRAM_H_
