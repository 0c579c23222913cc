#include "shardwise/base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "shardwise/base/random.h"

namespace shardwise::base {

namespace fs = std::filesystem;

namespace {

constexpr size_t kSuffixDigits = 20;  // of the largest integer of 64 bits: names that no user gives a file

// A temporary name is removed only under the lock of its file. So neither a file that is being written nor a
// new one with the name of one that was removed is removed.

bool has_name(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

/// Another process may find the file before its lock and remove it, so that it has to be created again.
File create_locked(const std::string& path) {
  while (true) {
    File file = File::create(path);
    while (::flock(file.descriptor(), LOCK_EX) != 0 && errno == EINTR) {  // a signal that was handled
    }
    if (has_name(file.descriptor())) return file;
  }
}

void remove_unless_locked(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const bool is_stale = file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  if (is_stale && has_name(file.get())) ::unlink(path.c_str());
}

/// Ignores errors: a file that cannot be removed does not keep the new one from being written.
std::string without_stale_ones(std::string path) {
  const fs::path directory = fs::path(path).parent_path();
  const std::string begin = fs::path(path).filename().string() + ".tmp";
  std::error_code error;
  fs::directory_iterator entry(directory.empty() ? "." : directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    const bool is_temporary = name.size() == begin.size() + kSuffixDigits && name.starts_with(begin) &&
                              name.find_first_not_of("0123456789", begin.size()) == std::string::npos;
    if (is_temporary) remove_unless_locked(entry->path());
  }
  return path;
}

}  // namespace

std::string temporary_beside(const std::string& path) {
  const std::string digits = std::to_string(random_bits());
  return path + ".tmp" + std::string(kSuffixDigits - digits.size(), '0') + digits;
}

AtomicFile::AtomicFile(std::string path, std::string temporary)
    : path_(without_stale_ones(std::move(path))),
      temporary_(std::move(temporary)),
      file_(create_locked(temporary_)) {}

AtomicFile::~AtomicFile() {
  if (!is_published_) ::unlink(temporary_.c_str());
}

void AtomicFile::publish() {
  file_.sync();
  base::rename(temporary_, path_);
  is_published_ = true;
}

}  // namespace shardwise::base
