#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <system_error>

#include "error.h"
#include "page_guard.h"
#include "text.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // of Linux 5.14
#endif

namespace tvm_edge {
namespace {

constexpr size_t kRequest = 128 << 10;  // default of Linux's bound of one request
constexpr int64_t kTickNs = 20000000;   // two of the slowest kernels'
constexpr int kMostTicks = 10;

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t RoundedUp(size_t bytes) { return (bytes + PageBytes() - 1) / PageBytes() * PageBytes(); }

/*! \brief Bytes that the kernel reads at once from a disk, by its number. */
size_t LargestRequest(dev_t device) {
  std::ifstream file("/sys/class/bdi/" + std::to_string(major(device)) + ":" +
                     std::to_string(minor(device)) + "/read_ahead_kb");
  size_t kib = 0;
  return file >> kib ? std::max(kRequest, kib << 10) : kRequest;  // no disk, or no /sys
}

int64_t Nanoseconds(const struct timespec& time) {
  return int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

struct Files {
  std::mutex lock;
  std::map<const char*, std::weak_ptr<MappedFile>> by_address;
};
Files& files() {
  static auto* files = new Files();
  return *files;
}

}  // namespace

struct stat SettledStatus(int fd, const std::string& name) {
  // File systems keep the time by the kernel's tick: of two writes in one, only the first changes
  // it.
  struct stat status;
  for (int tick = 0; tick < kMostTicks; ++tick) {
    if (fstat(fd, &status)) throw std::system_error(errno, std::generic_category());
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t age = Nanoseconds(now) - Nanoseconds(status.st_mtim);
    if (age < 0 || age >= kTickNs) return status;
    const struct timespec wait{0, kTickNs};
    nanosleep(&wait, nullptr);
  }
  ThrowArtifact("somebody writes to " + Quoted(name) +
                "; load it when it is whole, and replace files by renaming others");
}

std::shared_ptr<MappedFile> MappedFile::Map(int fd, std::string name, const struct stat& since) {
  std::shared_ptr<MappedFile> made(new MappedFile(fd, std::move(name), since));
  std::lock_guard<std::mutex> lock(files().lock);
  files().by_address[made->data_] = made;
  return made;
}

MappedFile::MappedFile(int fd, std::string name, const struct stat& since)
    : name_(std::move(name)),
      nbytes_(static_cast<size_t>(since.st_size)),
      written_(since.st_mtim),
      request_(LargestRequest(since.st_dev)) {
  void* mapped = mmap(nullptr, nbytes_, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category());
  data_ = static_cast<char*>(mapped);
  fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd_ < 0) {
    const int error = errno;
    munmap(data_, nbytes_);
    throw std::system_error(error, std::generic_category());
  }
  // Kernels may read to the end of the last page, whatever the file has of it.
  guard_ = TvmEdgeGuardPages(data_, RoundedUp(nbytes_));
  const uid_t user = geteuid();
  tells_ = user == 0 || user == since.st_uid ||
           access(("/proc/self/fd/" + std::to_string(fd_)).c_str(), W_OK) == 0;
}

MappedFile::~MappedFile() {
  {
    std::lock_guard<std::mutex> lock(files().lock);
    auto found = files().by_address.find(data_);
    if (found != files().by_address.end() && found->second.expired()) {
      files().by_address.erase(found);
    }
  }
  if (guard_) TvmEdgeReleasePages(guard_);
  munmap(data_, nbytes_);
  close(fd_);
}

void MappedFile::Check() const {
  struct stat status;
  if (fstat(fd_, &status)) throw std::system_error(errno, std::generic_category());
  if (static_cast<size_t>(status.st_size) < nbytes_) {
    ThrowArtifact(Quoted(name_) + " was cut from " + std::to_string(nbytes_) + " to " +
                  std::to_string(status.st_size) +
                  " bytes while it was in use; export it again, and load it anew");
  }
  if (Nanoseconds(status.st_mtim) != Nanoseconds(written_)) {
    ThrowArtifact(Quoted(name_) +
                  " was written to while it was in use, and results may be wrong; load it anew, "
                  "with copy=True if it is written in place again, or replace the file by renaming "
                  "another one");
  }
  if (guard_ && TvmEdgePagesLost(guard_)) {
    ThrowArtifact(Quoted(name_) +
                  " was cut while it was in use, and is as long as it was again; load it anew");
  }
}

MappedFile::Pages MappedFile::PagesOf(const void* data, size_t nbytes) const {
  const auto begin = static_cast<size_t>(static_cast<const char*>(data) - data_);
  return {begin / PageBytes() * PageBytes(), std::min(begin + nbytes, nbytes_)};
}

std::vector<unsigned char> MappedFile::Residency(Pages pages) const {
  std::vector<unsigned char> found(RoundedUp(pages.last - pages.first) / PageBytes());
  if (mincore(data_ + pages.first, pages.last - pages.first, found.data())) {
    throw std::system_error(errno, std::generic_category());
  }
  return found;
}

bool MappedFile::IsInMemory(const void* data, size_t nbytes) const {
  if (!tells_) return false;
  const auto found = Residency(PagesOf(data, nbytes));
  return std::all_of(found.begin(), found.end(), [](unsigned char page) { return page & 1; });
}

bool MappedFile::ReadAhead(const void* data, size_t nbytes) const {
  const Pages pages = PagesOf(data, nbytes);
  const size_t length = pages.last - pages.first;
  std::vector<unsigned char> there(RoundedUp(length) / PageBytes());
  if (tells_) there = Residency(pages);
  const bool missing =
      !std::all_of(there.begin(), there.end(), [](unsigned char page) { return page & 1; });
  if (tells_ && missing && !madvise(data_ + pages.first, length, MADV_POPULATE_READ)) return true;
  const size_t request_pages = request_ / PageBytes();
  for (size_t page = 0; page < there.size();) {
    if (there[page] & 1) {
      ++page;
      continue;
    }
    const size_t begin = page / request_pages * request_;
    posix_fadvise(fd_, static_cast<off_t>(pages.first + begin),
                  static_cast<off_t>(std::min(request_, length - begin)), POSIX_FADV_WILLNEED);
    page = (page / request_pages + 1) * request_pages;
  }
  return tells_ && missing;
}

void MappedFile::ReadInto(void* into, const void* data, size_t nbytes) const {
  auto place = static_cast<off_t>(static_cast<const char*>(data) - data_);
  auto* target = static_cast<char*>(into);
  while (nbytes) {
    const ssize_t count = pread(fd_, target, nbytes, place);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      ThrowArtifact("cannot read " + Quoted(name_) + ": " + std::strerror(errno) +
                    "; copy it to another disk");
    }
    if (count == 0) {
      Check();
      ThrowArtifact(Quoted(name_) + " ends before its weights; export it again");
    }
    target += count;
    place += count;
    nbytes -= static_cast<size_t>(count);
  }
}

void MappedFile::Drop(const void* data, size_t nbytes) const {
  const auto begin = static_cast<size_t>(static_cast<const char*>(data) - data_);
  const size_t first = RoundedUp(begin);
  const size_t last = (begin + nbytes) / PageBytes() * PageBytes();
  if (last > first) madvise(data_ + first, last - first, MADV_DONTNEED);
}

std::shared_ptr<MappedFile> MappedFileAt(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  std::lock_guard<std::mutex> lock(files().lock);
  auto after = files().by_address.upper_bound(wanted);
  if (after == files().by_address.begin()) return nullptr;
  auto file = std::prev(after)->second.lock();
  return file && wanted < file->data() + file->nbytes() ? file : nullptr;
}

}  // namespace tvm_edge
