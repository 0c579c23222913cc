// Identifies a version of a checkpoint by its files' metadata, without reading their data.
#include "shardwise/base/files.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/weight_files.h"

namespace shardwise::checkpoint {

uint64_t fingerprint(const std::filesystem::path& directory, bool needs_state) {
  std::vector<std::string> files = weight_paths(directory);
  files.push_back(directory / kConfigFile);
  if (needs_state) files.push_back(directory / kStateFile);
  uint64_t hash = 0;
  for (const std::string& file : files) {
    hash = base::combine(hash, base::File::open_to_read(file).fingerprint());
  }
  return hash;
}

}  // namespace shardwise::checkpoint
