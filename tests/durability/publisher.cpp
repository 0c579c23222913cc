// Publishes directories under DIR, as a save does; the name of each one's only file is not synced by then.
#include "shardwise/base/files.h"
#include "shardwise/checkpoint/directories.h"

namespace {

namespace fs = std::filesystem;
using shardwise::checkpoint::TemporaryDirectory;

void write(const fs::path& directory, const std::string& text) {
  const auto file = shardwise::base::File::create(directory / "weights");
  file.write(0, static_cast<int64_t>(text.size()), text.data());
  file.sync();
}

}  // namespace

int main(int, char** argv) {
  const fs::path dir = argv[1];
  for (uint64_t version : {0, 1}) {  // the second one is exchanged with the first
    const fs::path path = shardwise::checkpoint::temporary_path(dir, /*step=*/1, version);
    TemporaryDirectory directory(path);
    write(path, std::to_string(version));
    directory.publish(dir / "step-1");
  }
  const fs::path path = shardwise::checkpoint::temporary_sibling(dir / "model", /*unique=*/7);
  TemporaryDirectory directory(path);
  write(path, "new");
  return directory.publish_new(dir / "model") ? 0 : 1;
}
