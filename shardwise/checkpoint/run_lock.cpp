#include "shardwise/checkpoint/run_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/checkpoint/file_lock.h"

namespace shardwise::checkpoint {
namespace {

constexpr size_t kMaxOwner = 100;  // bytes

/// Returns what the owner has written: it does so after it has taken the lock.
std::string owner_of(const base::Fd& file) {
  char text[kMaxOwner];
  const ssize_t bytes = pread(file.get(), text, sizeof(text), 0);
  return bytes > 0 ? std::string(text, size_t(bytes)) : "another process";
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& directory, std::chrono::milliseconds max_wait)
    : file_(open((directory / kFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
  const std::string path = directory / kFile;
  if (!file_) throw base::FileError("open [SW0354]", path, errno);
  if (!lock_within(file_, max_wait)) {
    TORCH_CHECK_VALUE(errno != EWOULDBLOCK, "train: --save ", directory.string(),
                      ": one run at a time may save here; got a run of ", owner_of(file_), " [SW0534]");
    base::log_warning(
        fmt::format("train: --save {}: cannot be locked ({}); a second run that saves there will "
                    "not be refused [SW0535]",
                    directory.string(), std::strerror(errno)));
    return;
  }
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string owner = fmt::format("pid {} on {}", getpid(), host);
  const bool is_written = ftruncate(file_.get(), 0) == 0 &&
                          pwrite(file_.get(), owner.data(), owner.size(), 0) == ssize_t(owner.size());
  if (!is_written) throw base::FileError("write [SW0356]", path, errno);
}

}  // namespace shardwise::checkpoint
