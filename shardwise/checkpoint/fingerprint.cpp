// Identifies a version of a checkpoint by its files' metadata, without reading their data.
#include "shardwise/base/files.h"
#include "shardwise/base/hash.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/weight_files.h"

namespace shardwise::checkpoint {

uint64_t fingerprint(const std::filesystem::path& directory, bool needs_state) {
  std::vector<std::string> files = weight_paths(directory);
  files.push_back(directory / kConfigFile);
  if (needs_state) files.push_back(directory / kStateFile);
  if (const std::string training = directory / kTrainingFile; needs_state && base::exists(training))
    files.push_back(training);
  uint64_t hash = base::kHashBegin;
  for (const std::string& file : files) {
    hash = base::mix(hash, base::File::open_to_read(file).fingerprint());
  }
  return hash;
}

}  // namespace shardwise::checkpoint
