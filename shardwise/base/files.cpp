#include "shardwise/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "shardwise/base/atomic_file.h"
#include "shardwise/base/error.h"
#include "shardwise/base/hash.h"

namespace shardwise::base {

namespace fs = std::filesystem;

namespace {

// Linux transfers at most 0x7ffff000 bytes per read or write.
constexpr int64_t kMaxTransferBytes = int64_t{1} << 30;

std::string reason_of(int error_number) {
  if (error_number == ENOSPC) return "no space left on the disk; free some or choose another directory";
  return std::strerror(error_number);
}

template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

void check(bool is_done, const char* op, const std::string& path) {
  if (!is_done) throw FileError(op, path, errno);
}

std::string parent_of(const std::string& path) {
  // "a/b/" refers to b, whose parent is a.
  fs::path clean(path);
  if (!clean.has_filename()) clean = clean.parent_path();
  const std::string parent = clean.parent_path().string();
  return parent.empty() ? "." : parent;
}

/// Resolves links in `path`, whose last components need not exist. "a/b/" and "a/b" give the same.
fs::path resolved(const std::string& path) {
  std::error_code unknown;
  const auto found = fs::weakly_canonical(fs::absolute(path), unknown);
  if (unknown) return path;
  return found.has_filename() ? found : found.parent_path();
}

/// Tries an unnamed file (O_TMPFILE), which a killed process cannot leave behind, and a named file if the
/// file system does not support those.
void check_creatable(const std::string& directory) {
  if (const Fd unnamed(::open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600)); unnamed) return;
  if (errno == EOPNOTSUPP || errno == EISDIR) {
    const AtomicFile probe(directory + "/.writable");
  } else {
    throw FileError("create in [SW0353]", directory, errno);
  }
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a device";
}

Fd open_directory(const std::string& path) {
  return Fd(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
}

/// Syncs the entry of a new directory in its parent. A parent that may be written to but not read cannot be
/// opened, so its whole file system is synced.
void sync_entry_of(const std::string& directory) {
  const Fd parent = open_directory(parent_of(directory));
  if (parent || errno != EACCES) return sync_directory(parent_of(directory));
  const Fd created = open_directory(directory);
  check(created && ::syncfs(created.get()) == 0, "sync directory [SW0361]", directory);
}

}  // namespace

FileError::FileError(const std::string& op, std::string path, const std::string& reason)
    : c10::Error(c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                 with_code_last(op + " " + path + ": " + reason)),
      path_(std::move(path)),
      error_number_(0) {}

FileError::FileError(const std::string& op, std::string path, int error_number)
    : FileError(op, std::move(path), reason_of(error_number)) {
  error_number_ = error_number;
}

File File::open_to_read(const std::string& path) {
  // O_NONBLOCK: opening a FIFO without a writer must not block before the check below rejects it.
  Fd descriptor(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  TORCH_CHECK_VALUE(descriptor, "read ", path, ": must be a readable file; got: ", std::strerror(errno),
                    " [SW0370]");
  File file(path, std::move(descriptor));
  struct stat status {};
  const bool is_regular = ::fstat(file.descriptor(), &status) == 0 && S_ISREG(status.st_mode);
  TORCH_CHECK_VALUE(is_regular, "read ", path, ": must be a regular file; got ", kind_of(status.st_mode),
                    " [SW0371]");
  return file;
}

File File::create(const std::string& path) {
  Fd descriptor(
      uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644); }));
  check(bool(descriptor), "create [SW0352]", path);
  return {path, std::move(descriptor)};
}

File File::open_to_write(const std::string& path) {
  Fd descriptor(uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); }));
  check(bool(descriptor), "open [SW0354]", path);
  return {path, std::move(descriptor)};
}

int64_t File::size() const {
  struct stat status {};
  check(::fstat(descriptor(), &status) == 0, "stat [SW0355]", path_);
  return status.st_size;
}

uint64_t File::fingerprint() const {
  struct stat status {};
  check(::fstat(descriptor(), &status) == 0, "stat [SW0355]", path_);
  uint64_t hash = kHashBegin;
  for (const int64_t number : {int64_t(status.st_ino), int64_t(status.st_size),
                               int64_t(status.st_mtim.tv_sec), int64_t(status.st_mtim.tv_nsec)}) {
    hash = mix(hash, static_cast<uint64_t>(number));
  }
  return hash;
}

void File::read(int64_t offset, int64_t length, void* dst) const {
  auto* to = static_cast<char*>(dst);
  while (length > 0) {
    const ssize_t got =
        uninterrupted([&] { return ::pread(descriptor(), to, std::min(length, kMaxTransferBytes), offset); });
    TORCH_CHECK_VALUE(got >= 0, "read ", path_, ": must be readable; got: ", std::strerror(errno),
                      " [SW0372]");
    TORCH_CHECK_VALUE(got > 0, "read ", path_, ": must have ", length, " bytes at ", offset,
                      "; got a file of ", size(), " bytes; the file is truncated [SW0373]");
    to += got, offset += got, length -= got;
  }
}

void File::write(int64_t offset, int64_t length, const void* src) const {
  auto* from = static_cast<const char*>(src);
  while (length > 0) {
    const ssize_t done = uninterrupted(
        [&] { return ::pwrite(descriptor(), from, std::min(length, kMaxTransferBytes), offset); });
    check(done >= 0, "write [SW0356]", path_);
    from += done, offset += done, length -= done;
  }
}

void File::allocate(int64_t bytes) const {
  check(uninterrupted([&] { return ::ftruncate(descriptor(), bytes); }) == 0, "resize [SW0357]", path_);
  if (bytes == 0) return;
  int error_number = EINTR;  // posix_fallocate returns the error and leaves errno alone
  while (error_number == EINTR) error_number = ::posix_fallocate(descriptor(), 0, bytes);
  if (error_number != 0) throw FileError("allocate [SW0358]", path_, error_number);
}

void File::sync() const {
  check(uninterrupted([&] { return ::fsync(descriptor()); }) == 0, "sync [SW0359]", path_);
}

std::string read_text(const std::string& path, int64_t max_bytes) {
  const File file = File::open_to_read(path);
  const int64_t bytes = file.size();
  TORCH_CHECK_VALUE(bytes <= max_bytes, "read ", path, ": must be at most ", max_bytes, " bytes; got ", bytes,
                    " [SW0374]");
  std::string text(bytes, '\0');
  file.read(0, bytes, text.data());
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.file().write(0, static_cast<int64_t>(text.size()), text.data());
  file.publish();
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

void make_directories(const std::string& path) {
  std::vector<std::string> missing;
  for (std::string directory = path; !exists(directory); directory = parent_of(directory))
    missing.push_back(directory);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw FileError("make directory [SW0351]", path, error.value());
  for (const std::string& directory : missing) sync_entry_of(directory);
}

std::string make_temporary_directory(const std::string& prefix) {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) throw FileError("make directory [SW0351]", "in TMPDIR", error.value());
  std::string path = parent / (prefix + std::string(6, 'X'));  // the X's are what mkdtemp replaces
  if (!::mkdtemp(path.data())) throw FileError("make directory [SW0351]", path, errno);
  return path;
}

void remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw FileError("remove [SW0366]", path, error.value());
}

void sync_directory(const std::string& path) {
  const Fd directory = open_directory(path);
  check(bool(directory), "open directory [SW0360]", path);
  const bool is_synced = uninterrupted([&] { return ::fsync(directory.get()); }) == 0;
  // Some file systems do not support fsync on directories and return EINVAL.
  check(is_synced || errno == EINVAL, "sync directory [SW0361]", path);
}

void rename(const std::string& from, const std::string& to) {
  check(::rename(from.c_str(), to.c_str()) == 0, "rename to [SW0362]", to);
  sync_directory(parent_of(to));
}

void replace_symlink(const std::string& link, const std::string& target) {
  const std::string temporary = temporary_beside(link);
  check(::symlink(target.c_str(), temporary.c_str()) == 0, "link [SW0363]", temporary);
  try {
    base::rename(temporary, link);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

std::string path_within(const std::string& path, const std::string& directory) {
  const fs::path within = resolved(path).lexically_relative(resolved(directory));
  return within.empty() || *within.begin() == ".." ? "" : within.string();
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code missing;
  return fs::equivalent(a, b, missing) || resolved(a) == resolved(b);
}

void check_writable_directory(const std::string& directory) {
  try {
    make_directories(directory);
    check_creatable(directory);
  } catch (const FileError& error) {
    TORCH_CHECK_VALUE(false, "save directory ", directory,
                      ": must be a writable directory; got: ", without_code(error.what_without_backtrace()),
                      " [SW0285]");
  }
}

void check_new_or_regular_file(const std::string& flag, const std::string& path) {
  std::error_code missing;
  const auto type = fs::symlink_status(path, missing).type();
  const bool is_allowed = type == fs::file_type::regular || type == fs::file_type::not_found;
  TORCH_CHECK_VALUE(is_allowed, flag, " must be a regular file or a new path; got ", path, " [SW0293]");
}

void check_not_an_input(const std::string& flag, const std::string& path,
                        const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code missing;
    const bool is_input =
        is_directory(input) ? !path_within(path, input).empty() : fs::equivalent(path, input, missing);
    TORCH_CHECK_VALUE(!is_input, flag, " must not overwrite an input; got ", path, ", which is ", input,
                      " or in it [SW0294]");
  }
}

}  // namespace shardwise::base
