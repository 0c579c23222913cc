// Preloaded into a program (LD_PRELOAD): a file system without locks, on which flock fails.
#include <sys/file.h>

#include <cerrno>

extern "C" int flock(int, int) noexcept {
  errno = ENOLCK;
  return -1;
}
