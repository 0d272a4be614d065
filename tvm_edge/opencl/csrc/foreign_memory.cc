#include "foreign_memory.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "device.h"
#include "error.h"
#include "library.h"

namespace tvm_edge::opencl {
namespace ffi = tvm::ffi;
namespace {

// Of the widest vector that kernels load at once.
constexpr size_t kHostAlignment = 64;
constexpr const char* kArm = "cl_arm_import_memory";
constexpr const char* kKhronos = "cl_khr_external_memory_dma_buf";

using ImportMemoryARM = cl_mem (*)(cl_context, cl_bitfield, const intptr_t*, void*, size_t,
                                   cl_int*);
using PassExternalMemObjects = cl_int (*)(cl_command_queue, cl_uint, const cl_mem*, cl_uint,
                                          const cl_event*, cl_event*);

bool IsCpu(const Device* device) { return (device->info.type & CL_DEVICE_TYPE_CPU) != 0; }

/*! \brief Holds a block of somebody else's memory, and what has to live as long. */
class ForeignMemory {
 public:
  ForeignMemory(Device* device, Allocation* block, ffi::Optional<ffi::Tensor> owner = {},
                PassExternalMemObjects release = nullptr)
      : device_(device), block_(block), owner_(std::move(owner)), release_(release) {}

  void AllocData(DLTensor* tensor) { tensor->data = reinterpret_cast<void*>(block_->base); }
  void FreeData(DLTensor*) {
    if (Forked()) return;
    if (release_ != nullptr) {
      // A failure shows at the next use of the queue: this is called by destructors.
      device_->streams.Get(nullptr)->Submit(
          "release", false, [&](cl_command_queue queue, cl_event* event) {
            return release_(queue, 1, &block_->mem, 0, nullptr, event);
          });
    }
    device_->memory.Return(block_);
  }

 private:
  Device* device_;
  Allocation* block_;
  ffi::Optional<ffi::Tensor> owner_;
  PassExternalMemObjects release_;
};

ffi::Tensor BytesOver(Device* device, Allocation* block, PassExternalMemObjects release = nullptr) {
  return ffi::Tensor::FromNDAlloc(ForeignMemory(device, block, std::nullopt, release),
                                  ffi::Shape({static_cast<int64_t>(block->bytes)}),
                                  DLDataType{kDLUInt, 8, 1}, DLDevice{kDLOpenCL, device->index});
}

void RequireBytes(int64_t nbytes) {
  if (nbytes <= 0) {
    TVM_FFI_THROW(ValueError) << "memory of " << nbytes << " bytes; pass at least one";
  }
}

/*! \brief A function of an extension; null where the driver lacks it. */
template <typename Function>
Function ExtensionFunction(const Device* device, const char* name) {
  if (cl().clGetExtensionFunctionAddressForPlatform == nullptr) return nullptr;
  return reinterpret_cast<Function>(
      cl().clGetExtensionFunctionAddressForPlatform(device->platform, name));
}

[[noreturn]] void RefuseDmaBuf(const Device* device, const std::string& why) {
  TVM_FFI_THROW(NotImplementedError)
      << "OpenCL device " << device->Describe() << " takes no dma-buf: " << why
      << "; map it, and pass its memory as an input, which is copied";
  TVM_FFI_UNREACHABLE();
}

[[noreturn]] void RefuseMemory(Device* device, cl_int status, const char* function) {
  if (IsOutOfMemory(status)) Fail(status, device, "importing memory");
  TVM_FFI_THROW(ValueError) << "OpenCL device " << device->Describe() << " does not take the "
                            << "dma-buf: " << function << " failed with " << StatusName(status)
                            << "; check the descriptor and how many bytes it has";
  TVM_FFI_UNREACHABLE();
}

ffi::Tensor ImportByArm(Device* device, int fd, size_t bytes) {
  const auto import = ExtensionFunction<ImportMemoryARM>(device, "clImportMemoryARM");
  if (import == nullptr) RefuseDmaBuf(device, "its driver lacks clImportMemoryARM");
  const intptr_t properties[] = {CL_IMPORT_TYPE_ARM, CL_IMPORT_TYPE_DMA_BUF_ARM, 0};
  cl_int status = CL_SUCCESS;
  cl_mem mem = import(device->context, CL_MEM_READ_WRITE, properties, &fd, bytes, &status);
  if (status != CL_SUCCESS) RefuseMemory(device, status, "clImportMemoryARM");
  return BytesOver(device, device->memory.Adopt(mem, bytes, nullptr));
}

ffi::Tensor ImportByKhronos(Device* device, int fd, size_t bytes) {
  const auto acquire = ExtensionFunction<PassExternalMemObjects>(
      device, "clEnqueueAcquireExternalMemObjectsKHR");
  const auto release = ExtensionFunction<PassExternalMemObjects>(
      device, "clEnqueueReleaseExternalMemObjectsKHR");
  if (acquire == nullptr || release == nullptr ||
      cl().clCreateBufferWithProperties == nullptr) {
    RefuseDmaBuf(device, std::string("its driver lacks functions of ") + kKhronos);
  }
  const cl_ulong properties[] = {CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR, static_cast<cl_ulong>(fd),
                                 0};
  cl_int status = CL_SUCCESS;
  cl_mem mem = cl().clCreateBufferWithProperties(device->context, properties, CL_MEM_READ_WRITE,
                                                 bytes, nullptr, &status);
  if (status != CL_SUCCESS) RefuseMemory(device, status, "clCreateBufferWithProperties");
  Allocation* block = device->memory.Adopt(mem, bytes, nullptr);
  status = device->streams.Get(nullptr)->Submit(
      "acquire", false, [&](cl_command_queue queue, cl_event* event) {
        return acquire(queue, 1, &mem, 0, nullptr, event);
      });
  if (status != CL_SUCCESS) {
    device->memory.Return(block);
    RefuseMemory(device, status, "clEnqueueAcquireExternalMemObjectsKHR");
  }
  return BytesOver(device, block, release);
}

}  // namespace

Allocation* Memory::Borrow(void* host, size_t bytes, bool writable) {
  device_->CheckUsable();
  // Drivers of other devices copy such memory, or take whole pages alone.
  if (!IsCpu(device_) || device_->memory_kind == MemoryKind::kBuffer) return nullptr;
  if (bytes == 0 || reinterpret_cast<uintptr_t>(host) % kHostAlignment != 0) return nullptr;
  cl_int status = CL_SUCCESS;
  const cl_bitfield access = writable ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
  cl_mem mem = cl().clCreateBuffer(device_->context, access | CL_MEM_USE_HOST_PTR, bytes, host,
                                   &status);
  if (status != CL_SUCCESS) return nullptr;
  return Adopt(mem, bytes, static_cast<char*>(host));
}

Allocation* Memory::Adopt(cl_mem mem, size_t bytes, char* host) {
  auto block = std::make_unique<Allocation>();
  block->bytes = bytes;
  block->mem = mem;
  block->borrowed = true;
  block->host = host;
  std::unique_lock<std::shared_mutex> lock(mutex_);
  block->base = NewHandle(bytes);
  blocks_[block->base] = block.get();
  return block.release();
}

void Memory::Return(Allocation* block) noexcept {
  device_->streams.QuiesceAll();
  {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    blocks_.erase(block->base);
  }
  Destroy(block);
}

ffi::Optional<ffi::Tensor> Borrow(const ffi::Tensor& tensor, int index) {
  if (tensor.device().device_type != kDLCPU)
    TVM_FFI_THROW(ValueError) << "borrow takes a CPU tensor";
  if (!tensor.IsContiguous()) TVM_FFI_THROW(ValueError) << "borrow takes a contiguous tensor";
  Device* device = GetDevice(index);
  char* host = static_cast<char*>(tensor.GetDLTensorPtr()->data) + tensor.byte_offset();
  Allocation* block = device->memory.Borrow(host, ffi::GetDataSize(tensor), /*writable=*/false);
  if (block == nullptr) return std::nullopt;
  return ffi::Tensor::FromNDAlloc(ForeignMemory(device, block, tensor), tensor.shape(),
                                  tensor.dtype(), DLDevice{kDLOpenCL, index});
}

ffi::Tensor ImportHostMemory(int index, void* address, int64_t nbytes) {
  Device* device = GetDevice(index);
  RequireBytes(nbytes);
  if (!IsCpu(device)) {
    TVM_FFI_THROW(NotImplementedError)
        << "OpenCL device " << device->Describe() << " is no CPU, and its driver would copy memory "
        << "of the host; pass it as an input, or import a dma-buf";
  }
  if (reinterpret_cast<uintptr_t>(address) % kHostAlignment != 0) {
    TVM_FFI_THROW(ValueError) << "memory at " << address << " begins on no multiple of "
                              << kHostAlignment << " bytes; allocate it with aligned_alloc";
  }
  Allocation* block = device->memory.Borrow(address, static_cast<size_t>(nbytes), /*writable=*/true);
  if (block == nullptr) {
    TVM_FFI_THROW(NotImplementedError) << "OpenCL device " << device->Describe()
                                       << " does not take memory of the host; pass it as an input";
  }
  return BytesOver(device, block);
}

ffi::Tensor ImportBuffer(int index, void* buffer, int64_t nbytes) {
  Device* device = GetDevice(index);
  device->CheckUsable();
  RequireBytes(nbytes);
  auto* mem = static_cast<cl_mem>(buffer);
  cl_uint type = 0;
  size_t bytes = 0;
  cl_context context = nullptr;
  const auto ask = [&](cl_info what, size_t room, void* out) {
    const cl_int status = cl().clGetMemObjectInfo(mem, what, room, out, nullptr);
    if (status == CL_SUCCESS) return;
    TVM_FFI_THROW(ValueError) << buffer << " is no memory object of OpenCL ("
                              << StatusName(status) << "); pass a cl_mem";
  };
  ask(CL_MEM_TYPE, sizeof type, &type);
  ask(CL_MEM_SIZE, sizeof bytes, &bytes);
  ask(CL_MEM_CONTEXT, sizeof context, &context);
  if (type != CL_MEM_OBJECT_BUFFER) {
    TVM_FFI_THROW(ValueError) << "the memory object is an image or a pipe; pass a buffer";
  }
  if (context != device->context) {
    TVM_FFI_THROW(ValueError) << "the buffer is of another context than OpenCL device "
                              << device->Describe()
                              << "; make it in the context of tvm_edge_opencl_context";
  }
  if (bytes < static_cast<size_t>(nbytes)) {
    TVM_FFI_THROW(ValueError) << "the buffer has " << bytes << " bytes, and " << nbytes
                              << " are wanted; make it larger";
  }
  Check(cl().clRetainMemObject(mem), device, "keeping a buffer");
  return BytesOver(device, device->memory.Adopt(mem, static_cast<size_t>(nbytes), nullptr));
}

ffi::Tensor ImportDmaBuf(int index, int64_t fd, int64_t nbytes) {
  Device* device = GetDevice(index);
  device->CheckUsable();
  RequireBytes(nbytes);
  const DeviceInfo& info = device->info;
  const bool arm = info.has(kArm) || info.has(std::string(kArm) + "_dma_buf");
  if (!arm && !info.has(kKhronos)) {
    RefuseDmaBuf(device, std::string("its driver has neither ") + kArm + " nor " + kKhronos);
  }
  const off_t bytes = lseek(static_cast<int>(fd), 0, SEEK_END);
  if (bytes < 0) {
    TVM_FFI_THROW(ValueError) << "file descriptor " << fd << " is no dma-buf ("
                              << std::strerror(errno) << ")";
  }
  if (bytes < nbytes) {
    TVM_FFI_THROW(ValueError) << "the dma-buf has " << bytes << " bytes, and " << nbytes
                              << " are wanted; pass nbytes of it or less";
  }
  return (arm ? ImportByArm : ImportByKhronos)(device, static_cast<int>(fd),
                                               static_cast<size_t>(nbytes));
}

}  // namespace tvm_edge::opencl
