// Device memory: handles, a pool, counters, views.
#ifndef TVM_EDGE_OPENCL_MEMORY_H_
#define TVM_EDGE_OPENCL_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "abi.h"
#include "stream.h"

namespace tvm_edge::opencl {

class Device;

/*! \brief One block of device memory; `mem` or `svm` is set. */
struct Allocation {
  uintptr_t base = 0;  // what TVM sees as the tensor's data pointer
  size_t bytes = 0;    // size of the block, at least what was asked for
  cl_mem mem = nullptr;
  void* svm = nullptr;
  bool borrowed = false;      // somebody else's: of the host, at `host`, or a buffer
  std::atomic<int> views{0};  // host views alive; kernels must not touch the block meanwhile

  Allocation* next = nullptr;  // of its size in the pool; Memory's lock guards it

  std::mutex mutex;                      // guards what follows
  std::map<size_t, cl_mem> sub_buffers;  // offset → the rest of the block from there
  char* host = nullptr;                  // where the host sees the block while there are views
  bool read = false;                     // by the host: mapped for reading; of kSVMCoarse alone
};

/*! \brief An address within a block. */
struct Place {
  Allocation* block = nullptr;
  size_t offset = 0;
};

/*!
 * \brief The memory of one device.
 *
 * A handle is an address: the pointer itself for shared virtual memory, else a number from a range
 * no process can map. So `handle + offset` finds its block, as pointer arithmetic in TVM's VM
 * expects, and an address of something else, or of freed memory, is told apart before it reaches
 * the driver.
 */
class Memory {
 public:
  struct Stats {
    size_t in_use = 0, peak = 0, pooled = 0, live = 0;
  };

  explicit Memory(Device* device) : device_(device) {}

  /*! \brief A block of at least `bytes`; throws MemoryError. */
  void* Allocate(size_t bytes);
  /*! \brief Give a block back to the pool. Ignores what is not a block; never throws. */
  void Free(void* handle) noexcept;
  /*!
   * \brief Let kernels read host memory where it is; null where only a copy will do.
   *
   * The host leaves it as it is until Return, unless kernels may write there, too.
   */
  Allocation* Borrow(void* host, size_t bytes, bool writable);
  /*!
   * \brief Give a buffer of somebody else's a handle; its reference goes over to the block.
   * \param host Where the host sees the buffer at any time; null: nowhere.
   */
  Allocation* Adopt(cl_mem mem, size_t bytes, char* host);
  /*! \brief Undo one Borrow or Adopt, when the kernels are done; never throws. */
  void Return(Allocation* block) noexcept;
  /*! \brief The block an address lies in; throws ValueError naming `what` if there is none. */
  Place Find(const void* address, const char* what);
  /*! \brief A cl_mem that begins `place.offset` bytes into the block. */
  cl_mem BufferAt(const Place& place, const char* what);
  /*!
   * \brief Let the host see a block, for a view; where it sees it.
   *
   * Throws ValueError where the device does not share memory with the host. Waits for the device.
   */
  char* Map(Allocation* block);
  /*! \brief Undo one Map; never throws. */
  void Unmap(Allocation* block) noexcept;
  /*! \brief Where the host sees a block now; null if it has no view. */
  char* HostAddress(Allocation* block);
  /*!
   * \brief Let the host read a tensor that kernels may read at the same time; where it sees it.
   *
   * Null where only a copy will do: memory is not shared, or is in use in another way.
   * \param done Null to wait for the device; else gets the event that says when it may.
   */
  char* MapForReading(const Place& place, size_t bytes, Event* done);
  /*! \brief Undo one MapForReading that was not null; never throws. */
  void UnmapRead(Allocation* block, char* host) noexcept;
  /*! \brief Return pooled blocks to the driver; how many bytes. */
  size_t Release();
  Stats stats() const;
  void ResetPeak();
  /*! \brief Changes whenever a cl_mem or pointer becomes invalid, and may then mean another. */
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

 private:
  bool Reserve(size_t bytes);
  void Unreserve(size_t bytes);
  void Publish(Allocation* block, size_t bytes);
  Allocation* Create(size_t bytes);
  void Destroy(Allocation* block) noexcept;
  Allocation* TakePooled(size_t bytes);
  uintptr_t NewHandle(size_t bytes);
  void DropSubBuffers(Allocation* block) noexcept;

  Device* device_;
  std::atomic<uint64_t> generation_{0};
  mutable std::shared_mutex mutex_;  // guards everything below
  std::map<uintptr_t, Allocation*> blocks_;
  // The first free block of each size. Every size has its entry before it has a block: to free one
  // takes no memory.
  std::map<size_t, Allocation*> pool_;
  Stats stats_;
  // Above what 64-bit CPUs can address; never given twice, so stale handles stay invalid.
  uintptr_t next_handle_ = uintptr_t{1} << 52;
};

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_MEMORY_H_
