// Resolves a user's path to the directory of one checkpoint.
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/directories.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Returns the directory of the highest step that has a config.json; an empty path without one. A save that
/// is killed before it links the first `latest` leaves such a directory, which is complete.
fs::path newest_step(const fs::path& dir) {
  if (!base::is_directory(dir)) return {};
  int64_t newest = -1;
  for (const int64_t step : steps_in(dir)) {
    if (base::exists(dir / step_name(step) / kConfigFile)) newest = std::max(newest, step);
  }
  return newest < 0 ? fs::path() : dir / step_name(newest);
}

bool has_latest(const fs::path& dir) {
  std::error_code unknown;
  return fs::exists(fs::symlink_status(dir / kLatest, unknown));
}

}  // namespace

fs::path resolve(const fs::path& path) {
  if (base::exists(path / kConfigFile)) return path;
  const fs::path latest = path / kLatest;
  std::error_code error;
  const fs::path target = fs::read_symlink(latest, error);  // resolved once: `latest` may change later
  if (error && !has_latest(path)) {
    if (const fs::path newest = newest_step(path); !newest.empty()) return newest;
  }
  const fs::path directory = error ? latest : path / target;
  const char* found = !base::exists(path)         ? "a path that does not exist"
                      : !base::is_directory(path) ? "a file"
                      : error                     ? "a directory with neither"
                      : !base::exists(directory)  ? "a link to a directory that does not exist"
                                                  : "a link to a directory without one";
  TORCH_CHECK_VALUE(base::exists(directory / kConfigFile), "checkpoint ", path.string(), ": must contain a ",
                    kConfigFile, " or a link ", kLatest, " to a directory that does; got ", found,
                    " [SW0225]");
  return directory;
}

void warn_of_missing_latest(const fs::path& path, const fs::path& resolved, const std::string& command) {
  if (resolved == path || has_latest(path)) return;
  base::log_warning(
      fmt::format("{}: {} should have a link latest; got none: its first save was killed, or it was copied "
                  "without links; its newest checkpoint is used, {} [SW0640]",
                  command, path.string(), resolved.filename().string()));
}

}  // namespace shardwise::checkpoint
