// Which checkpoint it is, without reading it.
#include <algorithm>
#include <vector>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/checkpoint.h"

namespace shardwise::checkpoint {

uint64_t fingerprint(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string kind = entry.path().extension();
    if (kind == ".json" || kind == ".safetensors") files.push_back(entry.path());
  }
  TORCH_CHECK_VALUE(!error, "checkpoint ", folder.string(),
                    ": must be a readable folder; got: ", error.message());
  std::sort(files.begin(), files.end());
  uint64_t hash = 0;
  for (const std::string& file : files) {
    hash = base::combine(hash, base::File::open_to_read(file).fingerprint());
  }
  return hash;
}

}  // namespace shardwise::checkpoint
