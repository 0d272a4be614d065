#include "pinned_copies.h"

#include <algorithm>
#include <cstring>

#include "host.h"

namespace tvm_edge {
namespace {

// A block is copied in 0.3 ms, and some 10 us go by between two.
constexpr size_t kBlock = 16 << 20;
constexpr size_t kMostReaders = 8;

}  // namespace

PinnedCopies::PinnedCopies(const Device* device, DLDevice host)
    : device_(device), blocks_{EmptyBytes(kBlock, host), EmptyBytes(kBlock, host)} {
  const size_t count = std::min(kMostReaders, std::max<size_t>(AllowedCpus().size(), 1));
  for (size_t i = 0; i < count; ++i) readers_.push_back(std::make_unique<TaskThread>());
}

void PinnedCopies::Copy(const Tensor& source, const MappedFile* file, const Tensor& target) {
  const char* begin = DataOf(*source.operator->());
  const size_t nbytes = BytesOf(source);
  for (size_t done = 0; done < nbytes; done += kBlock) {
    const size_t piece = std::min(kBlock, nbytes - done);
    const Tensor& block = blocks_[next_];
    Fill(static_cast<char*>(block->data), begin + done, piece, file);
    // The other block, which is read into next, has crossed then.
    device_->Sync();
    const ffi::Shape shape({static_cast<int64_t>(piece)});
    block.CreateView(shape, kBytes).CopyTo(target.CreateView(shape, kBytes, done));
    next_ = 1 - next_;
  }
}

void PinnedCopies::Fill(char* block, const char* source, size_t nbytes, const MappedFile* file) {
  const size_t piece = (nbytes + readers_.size() - 1) / readers_.size();
  std::vector<std::shared_ptr<Task>> filled;
  for (size_t i = 0, begin = 0; begin < nbytes; ++i, begin += piece) {
    const size_t length = std::min(piece, nbytes - begin);
    filled.push_back(readers_[i]->Submit([=] {
      if (file) {
        file->ReadInto(block + begin, source + begin, length);
      } else {
        std::memcpy(block + begin, source + begin, length);
      }
    }));
  }
  std::exception_ptr error;
  for (const auto& task : filled) {  // nobody writes to the block when this throws
    if (std::exception_ptr thrown = task->Wait()) error = thrown;
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tvm_edge
