#include "shardwise/checkpoint/auxiliary_files.h"

#include <c10/util/Exception.h>

#include <algorithm>

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

std::vector<std::string> additional_chat_templates_in(const fs::path& directory) {
  const fs::path templates = directory / kAdditionalChatTemplates;
  std::vector<std::string> names;
  if (!base::exists(templates)) return names;
  std::error_code error;
  for (fs::directory_iterator entry(templates, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path name = entry->path().filename();
    if (name.extension() == ".jinja") names.push_back(kAdditionalChatTemplates / name);
  }
  TORCH_CHECK_VALUE(!error, templates.string(), ": must be a readable directory; got: ", error.message(),
                    " [SW0683]");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string read_auxiliary_file(const fs::path& directory, const std::string& name) {
  const fs::path root = root_of(fs::canonical(directory)), file = fs::canonical(directory / name);
  TORCH_CHECK_VALUE(
      is_within(file, root), (directory / name).string(),
      ": a file that is copied with a model must not be a link out of its directory; got a link to ",
      file.string(), "; replace the link by the file [SW0537]");
  return base::read_text(file, kMaxAuxiliaryFileBytes);
}

void write_auxiliary_file(const fs::path& directory, const std::string& name, const std::string& text) {
  const fs::path path = directory / name;
  base::make_directories(path.parent_path());
  base::write_text(path, text);
}

std::vector<std::string> tokenizer_auxiliary_files_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const char* name : kTokenizerAuxiliaryFiles) {
    if (base::exists(directory / name)) names.emplace_back(name);
  }
  const std::vector<std::string> templates = additional_chat_templates_in(directory);
  names.insert(names.end(), templates.begin(), templates.end());
  return names;
}

}  // namespace shardwise::checkpoint
