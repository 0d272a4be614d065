/* Preloaded: reads of files that fail, come in small pieces, or are interrupted by Ctrl-C. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_long until; /* calls that pass before one does not */
static atomic_int armed, error, longest;

/* After `calls` others all fail with `code`; 0: the next one is interrupted by Ctrl-C. */
EXPORT void faulty_reads(long calls, int code) {
  atomic_store(&error, code);
  atomic_store(&until, calls);
  atomic_store(&armed, 1);
}

EXPORT void sound_reads(void) { atomic_store(&armed, 0); }

/* No call reads more bytes; 0: as many as are asked for. */
EXPORT void short_reads(int bytes) { atomic_store(&longest, bytes); }

/* Whether a call was made that did not pass. */
EXPORT int was_faulty(void) { return atomic_load(&until) < 0; }

static ssize_t read_at(int fd, void *into, size_t bytes, off_t place) {
  if (atomic_load(&armed)) {
    const long left = atomic_fetch_sub(&until, 1);
    const int code = atomic_load(&error);
    if (code ? left <= 0 : left == 0) {
      if (!code) kill(getpid(), SIGINT);
      errno = code ? code : EINTR;
      return -1;
    }
  }
  const size_t most = (size_t)atomic_load(&longest);
  return syscall(SYS_pread64, fd, into, most && most < bytes ? most : bytes, place);
}

EXPORT ssize_t pread(int fd, void *into, size_t bytes, off_t place) {
  return read_at(fd, into, bytes, place);
}
EXPORT ssize_t pread64(int fd, void *into, size_t bytes, off_t place) {
  return read_at(fd, into, bytes, place);
}
