// From the path that a person gives to the directory of one checkpoint.
#include "shardwise/base/files.h"
#include "shardwise/checkpoint/contents.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

fs::path resolve(const fs::path& path) {
  if (base::exists(path / kConfigFile)) return path;
  const fs::path latest = path / kLatest;
  std::error_code error;
  const fs::path target = fs::read_symlink(latest, error);  // by its own name: `latest` may move on
  const fs::path directory = error ? latest : path / target;
  const char* found = !base::exists(path)         ? "nothing there"
                      : !base::is_directory(path) ? "no directory"
                      : error                     ? "a directory with neither"
                      : !base::exists(directory)  ? "a link to a directory that is gone"
                                                  : "a link to a directory without one";
  TORCH_CHECK_VALUE(base::exists(directory / kConfigFile), "checkpoint ", path.string(), ": must hold a ",
                    kConfigFile, " or a link ", kLatest, " to a directory that does; got ", found);
  return directory;
}

}  // namespace shardwise::checkpoint
