#include "arena.h"

#include <sys/mman.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace tvm_edge {
namespace ffi = tvm::ffi;
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMost = std::numeric_limits<int64_t>::max() / 2;

size_t RoundedUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/*! \brief Pages of the system, which has none of them in memory before they are touched. */
class Block {
 public:
  explicit Block(size_t bytes) { Map(bytes); }
  ~Block() { munmap(data_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  /*! \brief Have room for shapes half as large again: pages cost nothing until then. */
  void Grow(size_t bytes) {
    try {
      Map(RoundedUp(bytes + bytes / 2, kPage));
    } catch (const std::bad_alloc&) {
      Map(bytes);
    }
  }

 private:
  void Map(size_t bytes) {
    // What was touched stays in memory.
    void* data = data_ != nullptr ? mremap(data_, bytes_, bytes, MREMAP_MAYMOVE)
                                  : mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(data);
    bytes_ = bytes;
  }

  char* data_ = nullptr;
  size_t bytes_ = 0;
};

bool IsSmaller(const std::unique_ptr<Block>& block, size_t bytes) { return block->bytes() < bytes; }

/*! \brief Blocks that no run holds: as many as there were runs beside each other. */
class FreeBlocks {
 public:
  /*! \brief The smallest block that is large enough, else the largest, which grows. */
  std::unique_ptr<Block> Take(size_t bytes) {
    std::unique_ptr<Block> block = TakeFree(bytes);
    if (block == nullptr) block = std::make_unique<Block>(kPage);
    if (block->bytes() < bytes) block->Grow(bytes);
    return block;
  }

  void Give(std::unique_ptr<Block> block) noexcept try {
    std::lock_guard<std::mutex> lock(mutex_);
    auto place = std::lower_bound(blocks_.begin(), blocks_.end(), block->bytes(), IsSmaller);
    blocks_.insert(place, std::move(block));
  } catch (const std::bad_alloc&) {
    // No memory for the list: the block goes back to the system.
  }

  void Clear() {
    std::vector<std::unique_ptr<Block>> blocks;
    std::lock_guard<std::mutex> lock(mutex_);
    blocks.swap(blocks_);
  }

 private:
  std::unique_ptr<Block> TakeFree(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_.empty()) return nullptr;
    auto found = std::lower_bound(blocks_.begin(), blocks_.end(), bytes, IsSmaller);
    if (found == blocks_.end()) --found;
    std::unique_ptr<Block> block = std::move(*found);
    blocks_.erase(found);
    return block;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> blocks_;  // smallest first
};

/*! \brief Never freed: tensors may outlive all else. */
FreeBlocks& Blocks() {
  static auto* blocks = new FreeBlocks();
  return *blocks;
}

/*! \brief A block that is in use, until the last part of it is freed. */
class Lease {
 public:
  explicit Lease(size_t bytes) : block_(Blocks().Take(bytes)) {}
  ~Lease() { Blocks().Give(std::move(block_)); }

  char* data() const { return block_->data(); }

 private:
  std::unique_ptr<Block> block_;
};

/*! \brief Holds the lease for one tensor. */
class Part {
 public:
  Part(std::shared_ptr<Lease> lease, size_t offset) : lease_(std::move(lease)), offset_(offset) {}

  void AllocData(DLTensor* tensor) { tensor->data = lease_->data() + offset_; }
  void FreeData(DLTensor*) {}

 private:
  std::shared_ptr<Lease> lease_;
  size_t offset_;
};

/*!
 * \brief Memory of so many bytes each, that goes back when the last of the tensors is freed.
 * \throws std::bad_alloc The system has no such memory.
 */
ffi::Array<ffi::Tensor> Parts(const ffi::Shape& sizes) {
  std::vector<size_t> offsets;
  size_t total = 0;
  for (int64_t size : sizes) {
    offsets.push_back(total);
    if (size < 0 || static_cast<size_t>(size) > kMost - total) throw std::bad_alloc();
    total += RoundedUp(static_cast<size_t>(size), tvm::runtime::kAllocAlignment);
  }
  auto lease = std::make_shared<Lease>(RoundedUp(std::max<size_t>(total, 1), kPage));
  ffi::Array<ffi::Tensor> parts;
  for (size_t i = 0; i < offsets.size(); ++i) {
    parts.push_back(ffi::Tensor::FromNDAlloc(Part(lease, offsets[i]), ffi::Shape({sizes[i]}),
                                             DLDataType{kDLUInt, 8, 1}, DLDevice{kDLCPU, 0}));
  }
  return parts;
}

}  // namespace

void RegisterArenas() {
  tvm::ffi::reflection::GlobalDef()
      .def("vm.builtin.tvm_edge.arena_parts", Parts)
      .def("tvm_edge.release_arenas", [] { Blocks().Clear(); });
}

}  // namespace tvm_edge
