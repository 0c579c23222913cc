// Resolves a user's path to the directory of one checkpoint.
#include "shardwise/base/files.h"
#include "shardwise/checkpoint/contents.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

fs::path resolve(const fs::path& path) {
  if (base::exists(path / kConfigFile)) return path;
  const fs::path latest = path / kLatest;
  std::error_code error;
  const fs::path target = fs::read_symlink(latest, error);  // resolved once: `latest` may change later
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

}  // namespace shardwise::checkpoint
