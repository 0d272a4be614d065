// Parts of the native runtime alone: files that are mapped and cut, turns at a GPU's driver, copies
// through pinned blocks, digests and texts. Prints what failed; returns how many.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "captures.h"
#include "device.h"
#include "error.h"
#include "mapped_file.h"
#include "pinned_copies.h"
#include "sha256.h"
#include "text.h"

using namespace tvm_edge;

static int failures = 0;
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      std::printf("line %d: %s\n", __LINE__, #condition);             \
      ++failures;                                                     \
    }                                                                 \
  } while (0)

constexpr size_t kSize = 1 << 20;

std::shared_ptr<MappedFile> Mapped(const std::string& path, size_t nbytes = kSize) {
  std::ofstream(path, std::ios::binary) << std::string(nbytes, '\1');
  const int fd = open(path.c_str(), O_RDONLY);
  auto file = MappedFile::Map(fd, path, SettledStatus(fd, path));
  close(fd);
  return file;
}

std::string Refusal(const MappedFile& file) {
  try {
    file.Check();
  } catch (const ffi::Error& error) {
    return error.message();
  }
  return "";
}

size_t OpenFiles() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) != -1;
  return count;
}

void FilesThatAreCut(const std::string& folder) {
  const std::string path = folder + "/pages";
  const size_t before = OpenFiles();
  {
    auto file = Mapped(path);
    CHECK(MappedFileAt(file->data() + 5) == file);
    CHECK(Refusal(*file).empty());
    CHECK(truncate(path.c_str(), kSize / 2) == 0);
    CHECK(Refusal(*file).find("was cut from 1048576 to 524288 bytes") != std::string::npos);
    CHECK(file->data()[kSize / 2 - 1] == 1);
    CHECK(file->data()[kSize / 2] == 0);  // what is cut away reads as zeros
    // As long as it was again, with the time that it had: what was read as zeros is not forgotten.
    struct stat status;
    stat(path.c_str(), &status);
    CHECK(truncate(path.c_str(), kSize) == 0);
  }
  {
    auto file = Mapped(path);
    signal(SIGBUS, SIG_DFL);  // somebody takes the signal after us, as a driver that compiles
    CHECK(Refusal(*file).empty());
    CHECK(truncate(path.c_str(), 0) == 0);
    CHECK(file->data()[0] == 0);
    CHECK(!Refusal(*file).empty());
  }
  {
    auto file = Mapped(path);
    std::ofstream(path, std::ios::binary | std::ios::in) << "x";
    CHECK(Refusal(*file).find("was written to") != std::string::npos);
    char byte = 0;
    file->ReadInto(&byte, file->data(), 1);
    CHECK(byte == 'x');
  }
  CHECK(OpenFiles() == before);
}

void PagesAreReadAhead(const std::string& folder) {
  const std::string path = folder + "/large";
  std::ofstream(path, std::ios::binary) << std::string(64 << 20, '\1');
  const int fd = open(path.c_str(), O_RDONLY);
  fsync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  auto file = MappedFile::Map(fd, path, SettledStatus(fd, path));
  close(fd);
  const char* part = file->data() + (20 << 20);
  if (file->IsInMemory(part, 24 << 20)) return;  // a file system that keeps what it has
  CHECK(file->ReadAhead(part, 24 << 20));
  for (int i = 0; i < 2000 && !file->IsInMemory(part, 24 << 20); ++i) usleep(10000);
  CHECK(file->IsInMemory(part, 24 << 20));
  CHECK(!file->ReadAhead(part, 24 << 20));
  file->Drop(part, 24 << 20);
  CHECK(part[0] == 1);
}

/*! \brief One alone, or many. */
void TurnsAtADriver() {
  Captures captures;
  std::atomic<int> inside{0}, alone{0};
  std::atomic<bool> wrong{false}, shared{false};
  const auto visit = [&](bool wants_alone) {
    Captures::Shared turn(&captures);
    Captures::Shared again(&captures);  // changes nothing
    if (wants_alone) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      captures.StayAlone();
      captures.StayAlone();
    }
    const int others = inside.fetch_add(1);
    if (wants_alone) ++alone;
    if (others > 0 && (wants_alone || alone.load() > 0)) wrong = true;
    if (others > 0) shared = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (wants_alone) --alone;
    --inside;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 16; ++round) visit((i + round) % 3 == 2);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(!wrong);
  CHECK(shared);
  captures.StayAlone();  // code that no session runs waits for nobody
}

void CopiesThroughBlocks(const std::string& folder) {
  const auto device = Device::Make("llvm", 0);
  PinnedCopies copies(device.get(), kCpu);
  const size_t nbytes = (40 << 20) + 12345;
  Tensor source = EmptyBytes(nbytes), target = EmptyBytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i) static_cast<char*>(source->data)[i] = char(i * 31 >> 8);
  copies.Copy(source, nullptr, target);
  CHECK(std::memcmp(source->data, target->data, nbytes) == 0);
  auto file = Mapped(folder + "/weights", nbytes);
  const ffi::Shape shape({int64_t(nbytes)});
  Tensor mapped = Over(const_cast<char*>(file->data()), shape, kBytes, kCpu, file);
  copies.Copy(mapped, file.get(), target);
  CHECK(std::memcmp(file->data(), target->data, nbytes) == 0);
  CHECK(truncate((folder + "/weights").c_str(), 1 << 20) == 0);
  bool refused = false;
  try {
    copies.Copy(mapped, file.get(), target);
  } catch (const ffi::Error& error) {
    refused = error.message().find("was cut") != std::string::npos;
  }
  CHECK(refused);
}

void Texts() {
  Sha256 digest;
  digest.Update("abc", 3);
  CHECK(digest.Finish() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Quoted("it's") == "\"it's\"");
  CHECK(Quoted("a\n\x01") == "'a\\n\\x01'");
  const int64_t shape[] = {1, 3};
  CHECK(ShapeText(shape, 2) == "(1, 3)" && ShapeText(shape, 1) == "(1,)" &&
        ShapeText(shape, 0) == "()");
  CHECK(NearMatches("dta", {"data", "image"}) == "did you mean 'data'?");
  CHECK(NearMatches("DATA", {"data", "image"}) == "did you mean 'data'?");
  CHECK(NearMatches("x", {"data", "image"}) == "known: data, image");
  CHECK(OneLine(" a \n b ") == "a b");
  CHECK(InUtf8("a\x96 \xc3\xa9 \xe2\x80\xa6 \xe2\x80") == "a\\x96 \xc3\xa9 \xe2\x80\xa6 \\xe2\\x80");
  CHECK(InUtf8("\xc0\x80 \xed\xa0\x80") == "\\xc0\\x80 \\xed\\xa0\\x80");
}

int main(int, char** arguments) {
  const std::string folder = arguments[1];
  FilesThatAreCut(folder);
  PagesAreReadAhead(folder);
  TurnsAtADriver();
  CopiesThroughBlocks(folder);
  Texts();
  return failures;
}
