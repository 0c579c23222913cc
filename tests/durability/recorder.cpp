// Preloaded into a program (LD_PRELOAD): appends every change of the tree RECORDER_TREE to the file
// RECORDER_LOG.
//
// A lock is held over each system call and its record, so that the log has the order in which the kernel
// changed the tree, over all processes of a job. Changes by other calls than these (mmap, copy_file_range)
// are missed; recorded_run.h therefore compares the recorded tree with the real one.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <mutex>

#include "tests/durability/operation.h"

namespace {

using shardwise::testing::OperationHeader;
using Kind = shardwise::testing::OperationKind;

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

bool is_in_tree(const std::string& path) {
  static const std::string tree = variable("RECORDER_TREE");
  return !tree.empty() && (path == tree || path.starts_with(tree + "/"));
}

/// Returns the path of an open file now, whatever it was opened by; "... (deleted)" after an unlink.
std::string path_of(int fd) {
  char target[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const long bytes = syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), target, sizeof(target));
  const std::string path(target, bytes > 0 ? bytes : 0);
  return path.ends_with(" (deleted)") ? "" : path;
}

/// Resolves links in all but the last component, which the calls below do not follow.
std::string absolute(int directory, const std::string& path) {
  const std::string base = path.starts_with("/") || directory == AT_FDCWD ? "" : path_of(directory) + "/";
  std::string whole = base + path;
  while (whole.size() > 1 && whole.ends_with("/")) whole.pop_back();
  const size_t slash = whole.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : whole.substr(0, slash + 1);
  char resolved[PATH_MAX];
  if (!realpath(parent.c_str(), resolved)) return "";
  return std::string(resolved) + "/" + whole.substr(slash + 1);
}

std::mutex& threads() {
  static std::mutex mutex;
  return mutex;
}

/// The log, locked against other threads and processes. It is opened anew each time, because a program may
/// close all its descriptors.
class Log {
 public:
  Log()
      : guard_(threads()),
        fd_(syscall(SYS_openat, AT_FDCWD, variable("RECORDER_LOG").c_str(),
                    O_WRONLY | O_APPEND | O_CLOEXEC)) {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    while (fcntl(static_cast<int>(fd_), F_SETLKW, &whole) != 0 && errno == EINTR) {
    }
  }
  ~Log() {
    const int error_number = errno;
    syscall(SYS_close, fd_);
    errno = error_number;
  }
  Log(const Log&) = delete;

  void append(Kind kind, const std::string& path, const std::string& other = "", int64_t offset = 0,
              const void* data = nullptr, size_t bytes = 0) {
    const int error_number = errno;
    const OperationHeader header{kind, uint32_t(path.size()), uint32_t(other.size()), bytes, offset};
    put(&header, sizeof(header));
    put(path.data(), path.size());
    put(other.data(), other.size());
    put(data, bytes);
    errno = error_number;
  }

 private:
  void put(const void* data, size_t bytes) {
    if (syscall(SYS_write, fd_, data, bytes) != static_cast<long>(bytes)) abort();
  }

  std::lock_guard<std::mutex> guard_;
  long fd_;
};

/// Makes the system call and records it if it succeeds and changes the tree.
template <typename Call>
int recorded(Kind kind, const std::string& path, const std::string& other, Call call) {
  if (!is_in_tree(path)) return static_cast<int>(call());
  Log log;
  const int result = static_cast<int>(call());
  if (result == 0) log.append(kind, path, other);
  return result;
}

int open_at(int directory, const char* name, int flags, mode_t mode) {
  const auto call = [&] { return static_cast<int>(syscall(SYS_openat, directory, name, flags, mode)); };
  if ((flags & (O_CREAT | O_TRUNC)) == 0 || (flags & O_TMPFILE) == O_TMPFILE) return call();
  const std::string path = absolute(directory, name);
  if (!is_in_tree(path)) return call();
  Log log;
  const bool existed = syscall(SYS_faccessat, directory, name, F_OK) == 0;
  const int fd = call();
  if (fd >= 0 && !existed) log.append(Kind::create, path);
  if (fd >= 0 && existed && (flags & O_TRUNC) != 0) log.append(Kind::resize, path);
  return fd;
}

int64_t size_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_size : -1;
}

/// Writes at `at`, or at the descriptor's own offset without it.
ssize_t write_at(int fd, const void* data, size_t bytes, const int64_t* at) {
  const auto call = [&] {
    return at ? syscall(SYS_pwrite64, fd, data, bytes, *at) : syscall(SYS_write, fd, data, bytes);
  };
  const std::string path = path_of(fd);
  if (!is_in_tree(path)) return call();
  Log log;
  const bool appends = (fcntl(fd, F_GETFL) & O_APPEND) != 0;
  const int64_t offset = appends ? size_of(fd) : at ? *at : lseek(fd, 0, SEEK_CUR);
  const ssize_t done = call();
  if (done > 0) log.append(Kind::write, path, "", offset, data, done);
  return done;
}

ssize_t write_vector(int fd, const iovec* parts, int count, const int64_t* at) {
  if (!is_in_tree(path_of(fd)))
    return at ? syscall(SYS_pwritev, fd, parts, count, *at, 0) : syscall(SYS_writev, fd, parts, count);
  std::string all;
  for (int i = 0; i < count; ++i) all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  return write_at(fd, all.data(), all.size(), at);
}

/// For calls that may change a file's size, which return 0 or an error.
template <typename Call>
int resized(int fd, Call call) {
  const std::string path = path_of(fd);
  if (!is_in_tree(path)) return call();
  Log log;
  const int64_t before = size_of(fd);
  const int result = call();
  if (size_of(fd) != before) log.append(Kind::resize, path, "", size_of(fd));
  return result;
}

int synced(int fd, long number) {
  return recorded(Kind::sync, path_of(fd), "", [&] { return syscall(number, fd); });
}

int renamed(int from, const char* a, int to, const char* b, unsigned flags) {
  const Kind kind = (flags & RENAME_EXCHANGE) != 0 ? Kind::exchange : Kind::rename;
  return recorded(kind, absolute(from, a), absolute(to, b),
                  [&] { return syscall(SYS_renameat2, from, a, to, b, flags); });
}

int unlinked(int directory, const char* path, int flags) {
  const Kind kind = (flags & AT_REMOVEDIR) != 0 ? Kind::rmdir : Kind::unlink;
  return recorded(kind, absolute(directory, path), "",
                  [&] { return syscall(SYS_unlinkat, directory, path, flags); });
}

bool is_directory(const char* path) {
  struct stat status {};
  return lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

mode_t mode_in(va_list arguments, int flags) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

#define OPEN_WITH_MODE(directory, path, flags)   \
  va_list arguments;                             \
  va_start(arguments, flags);                    \
  const mode_t mode = mode_in(arguments, flags); \
  va_end(arguments);                             \
  return open_at(directory, path, flags, mode)

extern "C" {

int open(const char* path, int flags, ...) {
  OPEN_WITH_MODE(AT_FDCWD, path, flags);
}
int open64(const char* path, int flags, ...) {
  OPEN_WITH_MODE(AT_FDCWD, path, flags);
}
int openat(int directory, const char* path, int flags, ...) {
  OPEN_WITH_MODE(directory, path, flags);
}
int openat64(int directory, const char* path, int flags, ...) {
  OPEN_WITH_MODE(directory, path, flags);
}
int creat(const char* path, mode_t mode) {
  return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char* path, mode_t mode) {
  return creat(path, mode);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  return write_at(fd, data, bytes, nullptr);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  return write_at(fd, data, bytes, &at);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
  return write_at(fd, data, bytes, &at);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  return write_vector(fd, parts, count, nullptr);
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t at) {
  return write_vector(fd, parts, count, &at);
}
ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t at) {
  return write_vector(fd, parts, count, &at);
}

int ftruncate(int fd, off_t bytes) noexcept {
  return resized(fd, [&] { return static_cast<int>(syscall(SYS_ftruncate, fd, bytes)); });
}
int ftruncate64(int fd, off64_t bytes) noexcept {
  return ftruncate(fd, bytes);
}
int fallocate(int fd, int mode, off_t at, off_t bytes) {
  return resized(fd, [&] { return static_cast<int>(syscall(SYS_fallocate, fd, mode, at, bytes)); });
}
int fallocate64(int fd, int mode, off64_t at, off64_t bytes) {
  return fallocate(fd, mode, at, bytes);
}
int posix_fallocate(int fd, off_t at, off_t bytes) {
  // The C library's own: it writes where the file system has no such call.
  static const auto next = reinterpret_cast<int (*)(int, off_t, off_t)>(dlsym(RTLD_NEXT, "posix_fallocate"));
  return resized(fd, [&] { return next(fd, at, bytes); });
}
int posix_fallocate64(int fd, off64_t at, off64_t bytes) {
  return posix_fallocate(fd, at, bytes);
}

int fsync(int fd) {
  return synced(fd, SYS_fsync);
}
int fdatasync(int fd) {
  return synced(fd, SYS_fdatasync);
}

int rename(const char* a, const char* b) noexcept {
  return renamed(AT_FDCWD, a, AT_FDCWD, b, 0);
}
int renameat(int from, const char* a, int to, const char* b) noexcept {
  return renamed(from, a, to, b, 0);
}
int renameat2(int from, const char* a, int to, const char* b, unsigned flags) noexcept {
  return renamed(from, a, to, b, flags);
}
int symlinkat(const char* target, int directory, const char* path) noexcept {
  return recorded(Kind::symlink, absolute(directory, path), target,
                  [&] { return syscall(SYS_symlinkat, target, directory, path); });
}
int symlink(const char* target, const char* path) noexcept {
  return symlinkat(target, AT_FDCWD, path);
}
int unlink(const char* path) noexcept {
  return unlinked(AT_FDCWD, path, 0);
}
int unlinkat(int directory, const char* path, int flags) noexcept {
  return unlinked(directory, path, flags);
}
int rmdir(const char* path) noexcept {
  return unlinked(AT_FDCWD, path, AT_REMOVEDIR);
}
int remove(const char* path) noexcept {
  return is_directory(path) ? rmdir(path) : unlink(path);
}
int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  return recorded(Kind::mkdir, absolute(directory, path), "",
                  [&] { return syscall(SYS_mkdirat, directory, path, mode); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  return mkdirat(AT_FDCWD, path, mode);
}

}  // extern "C"
