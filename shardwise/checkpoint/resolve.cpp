// From the path that a person gives to the folder of one checkpoint.
#include "shardwise/base/files.h"
#include "shardwise/checkpoint/contents.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

fs::path resolve(const fs::path& path) {
  if (base::exists(path / kConfigFile)) return path;
  const fs::path latest = path / kLatest;
  std::error_code error;
  const fs::path target = fs::read_symlink(latest, error);  // by its own name: `latest` may move on
  const fs::path folder = error ? latest : path / target;
  const char* found = !base::exists(path)      ? "nothing there"
                      : !base::is_folder(path) ? "no folder"
                      : error                  ? "a folder with neither"
                      : !base::exists(folder)  ? "a link to a folder that is gone"
                                               : "a link to a folder without one";
  TORCH_CHECK_VALUE(base::exists(folder / kConfigFile), "checkpoint ", path.string(), ": must hold a ",
                    kConfigFile, " or a link ", kLatest, " to a folder that does; got ", found);
  return folder;
}

}  // namespace shardwise::checkpoint
