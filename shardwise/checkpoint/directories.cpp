#include "shardwise/checkpoint/directories.h"

#include <c10/util/FunctionRef.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <regex>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/base/random.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/file_lock.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

// Lock order: a process may wait for the lock of DIR while it holds the lock of a directory in DIR, because
// only the creator of the latter locks it and no process waits for it. A lock lasts until its descriptor is
// closed, also when the process exits. On a file system without locks try_lock fails and nothing is cleaned
// up.

base::Fd open_directory(const fs::path& path) {
  return base::Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/// Returns an empty Fd if another process holds the lock or the directory does not exist.
base::Fd try_lock(const fs::path& path) {
  base::Fd directory = open_directory(path);
  return directory && ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(directory) : base::Fd();
}

/// Waits for the lock. Errors: base::FileError if the directory cannot be opened, or if another process has
/// the lock after `max_wait`.
base::Fd wait_for_lock(const fs::path& path, std::chrono::milliseconds max_wait) {
  base::Fd directory = open_directory(path);
  if (!directory) throw base::FileError("open directory [SW0360]", path, errno);
  if (!lock_within(directory, max_wait) && errno == EWOULDBLOCK) {
    throw base::FileError("lock directory [SW0702]", path,
                          fmt::format("another process has had its lock for {:.1f} s; end that process "
                                      "(`fuser -v` lists it) or save elsewhere",
                                      std::chrono::duration<double>(max_wait).count()));
  }
  return directory;
}

/// Exchanges two directories atomically. With two renames `target` would be missing for a moment, and after a
/// crash for good.
void exchange(const fs::path& from, const fs::path& target) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  const int error_number = errno;
  TORCH_CHECK(error_number != EINVAL && error_number != ENOSYS, "save ", target.string(),
              ": must not exist yet on a file system that cannot exchange two directories; remove it or save "
              "elsewhere [SW0367]");
  throw base::FileError("exchange with [SW0364]", target, error_number);
}

std::vector<fs::path> matching_entries(const fs::path& dir, fs::file_type type, const std::regex& pattern) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    const bool has_type = entry->symlink_status().type() == type;
    if (has_type && std::regex_match(entry->path().filename().string(), pattern))
      found.push_back(entry->path());
  }
  if (error) throw base::FileError("list [SW0365]", dir, error.value());
  return found;
}

/// A cleanup that fails must not end a run, whose checkpoints are complete.
void warn_of_failure(c10::function_ref<void()> cleanup) {
  try {
    cleanup();
  } catch (const std::exception& error) {
    base::log_warning(base::one_line(error));
  }
}

void remove_or_warn(const fs::path& directory) {
  warn_of_failure([&] { base::remove_all(directory); });
}

/// Renames the directory first, so that the next save removes what remains if this process is killed. A
/// write-protected directory keeps its name.
void remove_step(const fs::path& dir, int64_t step) {
  const fs::path path = dir / step_name(step), renamed = temporary_path(dir, step, base::random_bits());
  warn_of_failure([&] {
    if (::faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
      throw base::FileError("remove [SW0366]", path, errno);
    base::rename(path, renamed);
    base::remove_all(renamed);
  });
}

std::regex step_names() {
  return std::regex("step-(0|[1-9][0-9]{0,17})");
}

void remove_stale_links(const fs::path& dir) {
  const std::regex link(fmt::format("{}\\.tmp[0-9]+", kLatest));
  for (const fs::path& stale : matching_entries(dir, fs::file_type::symlink, link)) base::remove_all(stale);
}

}  // namespace

std::string step_name(int64_t step) {
  return fmt::format("step-{}", step);
}

bool is_step_name(const std::string& name) {
  return std::regex_match(name, step_names());
}

std::vector<int64_t> steps_in(const fs::path& dir) {
  std::vector<int64_t> steps;
  for (const fs::path& directory : matching_entries(dir, fs::file_type::directory, step_names())) {
    steps.push_back(std::stoll(directory.filename().string().substr(step_name(0).size() - 1)));
  }
  return steps;
}

fs::path temporary_path(const fs::path& dir, int64_t step, uint64_t unique) {
  return dir / fmt::format(".{}.tmp-{}", step_name(step), unique);
}

fs::path temporary_sibling(const fs::path& target, uint64_t unique) {
  return target.parent_path() / fmt::format(".{}.tmp-{}", target.filename().string(), unique);
}

void remove_stale_siblings(const fs::path& target) {
  const base::Fd of_dir = try_lock(target.parent_path());
  if (!of_dir) return;  // another process is creating a directory
  const std::string begin = temporary_sibling(target, 0).filename().string();
  const size_t known = begin.size() - 1;
  for (const fs::path& directory :
       matching_entries(target.parent_path(), fs::file_type::directory, std::regex("\\..*\\.tmp-[0-9]+"))) {
    const std::string name = directory.filename();
    const bool is_ours = name.starts_with(begin.substr(0, known)) &&
                         name.find_first_not_of("0123456789", known) == std::string::npos;
    if (!is_ours) continue;
    if (const base::Fd abandoned = try_lock(directory)) remove_or_warn(directory);
  }
}

TemporaryDirectory::TemporaryDirectory(fs::path path, std::chrono::milliseconds max_wait)
    : path_(std::move(path)) {
  // Cleanup must not see the new directory before its lock.
  const base::Fd dir = wait_for_lock(path_.parent_path(), max_wait);
  if (::mkdir(path_.c_str(), 0777) != 0) throw base::FileError("make directory [SW0351]", path_, errno);
  lock_ = wait_for_lock(path_, max_wait);
}

TemporaryDirectory::~TemporaryDirectory() {
  remove_or_warn(path_);
}

void TemporaryDirectory::publish(const fs::path& target) {
  base::sync_directory(path_);
  if (fs::symlink_status(target).type() == fs::file_type::not_found) return base::rename(path_, target);
  exchange(path_, target);
  base::sync_directory(target.parent_path());
}

bool TemporaryDirectory::publish_new(const fs::path& target) {
  base::sync_directory(path_);
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) {
    base::sync_directory(target.parent_path());
    return true;
  }
  if (errno == EEXIST) return false;
  if (errno != EINVAL && errno != ENOSYS) throw base::FileError("rename to [SW0362]", target, errno);
  base::rename(path_, target);  // replaces nothing but an empty directory
  return true;
}

// Locks DIR, so that cleanup in another process cannot remove the new link before the rename.
void point_latest(const fs::path& dir, int64_t step, std::chrono::milliseconds max_wait) {
  const base::Fd of_dir = wait_for_lock(dir, max_wait);
  base::replace_symlink(dir / kLatest, step_name(step));
}

void remove_stale(const fs::path& dir) {
  if (!base::is_directory(dir)) return;
  const base::Fd of_dir = try_lock(dir);
  if (!of_dir) return;  // another process is creating a directory or a link
  remove_stale_links(dir);
  const std::regex half_written("\\.step-[0-9]+\\.tmp-[0-9]+");
  for (const fs::path& directory : matching_entries(dir, fs::file_type::directory, half_written)) {
    if (const base::Fd abandoned = try_lock(directory))
      remove_or_warn(directory);  // a locked one is being written
  }
}

void prune(const fs::path& dir, int64_t current, int64_t keep) {
  if (keep == 0) return;
  std::vector<int64_t> steps;
  warn_of_failure([&] { steps = steps_in(dir); });
  // Sorts the directories to keep to the front.
  std::sort(steps.begin(), steps.end(),
            [&](int64_t a, int64_t b) { return std::pair(a > current, -a) < std::pair(b > current, -b); });
  for (size_t i = keep; i < steps.size(); ++i) {
    if (steps[i] > current) {
      base::log_warning(
          fmt::format("save {}: removes step {}, which is after step {}, the one that was saved: it "
                      "belongs to an abandoned run [SW0536]",
                      dir.string(), steps[i], current));
    }
    remove_step(dir, steps[i]);
  }
}

}  // namespace shardwise::checkpoint
