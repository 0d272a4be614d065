// A device as running a model needs it: CPU, OpenCL and CUDA behind one interface.
#pragma once

#include <tvm/ffi/extra/module.h>

#include <memory>
#include <optional>
#include <string>

#include "tensors.h"

namespace tvm_edge {

/*!
 * \brief A device by its kind and number; nothing is asked of its driver before Open.
 *
 * What is not overridden is as of a device with memory of its own, whose driver takes launches one
 * by one, from any thread.
 */
class Device {
 public:
  /*! \param kind TVM's name of the kind: "llvm", "opencl" or "cuda". */
  static std::unique_ptr<Device> Make(const std::string& kind, int64_t index);
  virtual ~Device() = default;

  DLDevice handle() const { return handle_; }
  const std::string& kind() const { return kind_; }

  /*!
   * \brief Whether it is the CPU that the process runs on: TVM's virtual machine has it by itself,
   * runs happen at the same time, and kernels share the calling thread's pool.
   */
  virtual bool is_host() const { return false; }
  /*! \brief Whether a run may record its launches while nobody else uses the driver. */
  virtual bool may_capture() const { return false; }

  /*! \throws ffi::Error A DeviceUnavailableError. */
  virtual void Open() const;

  // ---- Code.

  /*! \brief Have the driver build a module's kernels now, not while the first frame waits. */
  virtual void Build(const ffi::Module&) const {}
  /*! \brief Hand the driver kernels that one like it has built. \throws ffi::Error A ValueError. */
  virtual void LoadPrograms(const std::string&) const {}
  /*! \brief The kernels whose work-groups are larger than the driver can run. */
  virtual std::vector<std::string> TooLargeKernels(const ffi::Module&) const { return {}; }

  // ---- Memory.

  /*!
   * \brief A tensor for kernels to read, over one in host memory; nothing: only a copy will do.
   *
   * Nobody may write to the memory while the result lives.
   */
  virtual std::optional<Tensor> Share(const Tensor&) const { return std::nullopt; }
  /*! \brief Whether Share works, which it does where the device is a CPU. */
  bool ReadsHostMemory() const { return Share(EmptyBytes(64)).has_value(); }
  /*! \brief Copy a tensor to the device; the copy may still be reading when this returns. */
  Tensor Upload(const Tensor& tensor) const { return tensor.CopyTo(handle_); }
  /*!
   * \brief An input as kernels take it: on the device, on 64 bytes, where its handle points.
   *
   * Over the caller's memory where it is so already; else its values are copied when this returns.
   */
  Tensor Place(const Tensor& value) const;
  /*! \brief Whether the host may write the device's memory while kernels run. */
  virtual bool HostWritesAtAnyTime() const { return false; }
  /*! \brief Place of tensors in host memory that the driver has pinned, if a program can ask. */
  virtual std::optional<DLDevice> PinnedMemory() const { return std::nullopt; }
  /*! \brief Give memory that was freed, and is kept for later tensors, back to the driver. */
  virtual void ReleaseMemory() const {}

  // ---- Runs.

  /*! \brief Wait until the device has done its work. */
  virtual void Sync() const { Synchronize(handle_); }
  /*! \brief Wait, before results are handed out, for what whoever takes them cannot wait for. */
  virtual void FinishRun() const {}
  /*! \brief Whether the driver replays launches that were recorded, where the code has any. */
  virtual bool ReplaysLaunches() const { return true; }
  /*! \brief Why the driver did not record something that it should; once, then empty. */
  virtual std::string RecordingFailure() const { return ""; }

 protected:
  Device(std::string kind, std::string needs, DLDeviceType type, int64_t index);
  bool Exists() const;

 private:
  std::string kind_;
  std::string needs_;  // hardware and driver that it takes, for messages
  int64_t index_;
  DLDevice handle_;
};

/*! \brief DLPack's number of a kind of device. */
DLDeviceType DeviceTypeOf(const std::string& kind);

/*!
 * \brief Read the number in a device's name, for a model compiled for a kind of device.
 * \param name "opencl", "opencl:1", "cuda", "cpu", ...; null: the first.
 * \throws ffi::Error An InputError; or a DeviceUnavailableError: the code is not made for it.
 */
int64_t DeviceIndex(const char* name, const std::string& kind);

/*! \brief While it lives, launches on a CUDA device go to its default stream. */
class DefaultStream {
 public:
  explicit DefaultStream(const Device& device);
  ~DefaultStream();
  DefaultStream(const DefaultStream&) = delete;
  DefaultStream& operator=(const DefaultStream&) = delete;

 private:
  DLDevice device_;
  bool set_;
  void* before_ = nullptr;
};

}  // namespace tvm_edge
