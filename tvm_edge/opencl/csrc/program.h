// Programs and kernels of a device: each kernel source is built once, whoever uses it.
#ifndef TVM_EDGE_OPENCL_PROGRAM_H_
#define TVM_EDGE_OPENCL_PROGRAM_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "abi.h"

namespace tvm_edge::opencl {

class Device;

/*! \brief One kernel's source for one device, built when it is first needed. */
class Program {
 public:
  Program(Device* device, std::string kernel_name, std::string source);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /*! \brief The built program: from memory, from the disk, or from source. Throws RuntimeError. */
  cl_program Build();
  /*! \brief The driver's binary of the built program; empty if it gives none. */
  std::string Binary();
  /*! \brief All that a binary depends on: the source, the options, the device and its driver. */
  std::string Key() const;

  const std::string& source() const { return source_; }

 private:
  cl_program FromBinary(const std::string& binary) noexcept;
  cl_program FromSource();
  std::string ReadBinary(cl_program program);

  Device* device_;
  const std::string kernel_name_;
  const std::string source_;
  std::mutex mutex_;  // guards program_
  cl_program program_ = nullptr;
};

/*! \brief A kernel object, and the lock that makes setting its arguments and launching it one. */
struct Kernel {
  Kernel(Device* device, std::shared_ptr<Program> program, const std::string& name);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /*! \brief A limit or size of the kernel on its device. */
  size_t Info(cl_info which) const;
  /*! \brief The work-group size its source requires; zeros if it requires none. */
  std::vector<size_t> RequiredWorkGroupSize() const;

  Device* const device;
  const std::shared_ptr<Program> program;
  cl_kernel handle = nullptr;
  std::mutex mutex;
};

/*! \brief The programs of a device that somebody holds. */
class Programs {
 public:
  explicit Programs(Device* device) : device_(device) {}

  /*! \brief The program of a source, shared with everyone who asked for the same source. */
  std::shared_ptr<Program> Get(const std::string& kernel_name, const std::string& source);
  /*! \brief Called by a program that goes. */
  void Forget(const Program* program);

 private:
  Device* device_;
  std::mutex mutex_;
  std::unordered_map<std::string_view, std::weak_ptr<Program>> live_;  // keys lie in the programs
};

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_PROGRAM_H_
