#include "shardwise/checkpoint/auxiliary_files.h"

#include <c10/util/Exception.h>

#include "shardwise/base/files.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

bool is_within(const fs::path& path, const fs::path& directory) {
  const fs::path relative = path.lexically_relative(directory);
  return !relative.empty() && *relative.begin() != "..";
}

/// Returns the directory in which the links of a model directory may end: itself, or in Hugging Face's cache
/// (models--NAME/snapshots/REVISION, whose files are links to models--NAME/blobs) that of the model.
fs::path root_of(const fs::path& directory) {
  const bool is_snapshot = directory.parent_path().filename() == "snapshots";
  return is_snapshot ? directory.parent_path().parent_path() : directory;
}

}  // namespace

std::string read_auxiliary_file(const fs::path& directory, const std::string& name) {
  const fs::path root = root_of(fs::canonical(directory)), file = fs::canonical(directory / name);
  TORCH_CHECK_VALUE(
      is_within(file, root), (directory / name).string(),
      ": a file that is copied with a model must not be a link out of its directory; got a link to ",
      file.string(), "; replace the link by the file [SW0537]");
  return base::read_text(file);
}

}  // namespace shardwise::checkpoint
