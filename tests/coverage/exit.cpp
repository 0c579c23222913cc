// Writes the counts of a process that ends by _exit or _Exit, which run no destructor, or becomes another
// program by execve. Linked into every program of a coverage build (cmake/flags.cmake).
#include <sys/resource.h>

namespace {

/// Lifts the limit on the size of files, which would cut the counts and so damage their file. At exit this
/// runs before the counts are written.
[[gnu::destructor]] void lift_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace

extern "C" {

void __gcov_dump();
void __gcov_reset();
[[noreturn]] void __real__exit(int status);
int __real_execve(const char* path, char* const* argv, char* const* environment);

[[noreturn]] void __wrap__exit(int status) {
  lift_limit();
  __gcov_dump();
  __real__exit(status);
}

[[noreturn]] void __wrap__Exit(int status) {
  __wrap__exit(status);
}

int __wrap_execve(const char* path, char* const* argv, char* const* environment) {
  __gcov_dump();
  const int result = __real_execve(path, argv, environment);
  __gcov_reset();  // it failed: what follows counts too
  return result;
}
}
