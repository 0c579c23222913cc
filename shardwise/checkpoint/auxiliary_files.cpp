#include "shardwise/checkpoint/auxiliary_files.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

/// How the directories of a repository in Hugging Face's cache begin.
constexpr const char* kRepositories[] = {"models--", "datasets--", "spaces--"};

bool is_within(const fs::path& path, const fs::path& directory) {
  const fs::path relative = path.lexically_relative(directory);
  return !relative.empty() && *relative.begin() != "..";
}

/// Returns the directory of the blobs to which the files of a snapshot in Hugging Face's cache link
/// (models--NAME/snapshots/REVISION and models--NAME/blobs); nothing for any other directory. The name
/// `snapshots` alone does not make a cache: its parent could be the user's home.
std::optional<fs::path> blobs_of(const fs::path& directory) {
  const fs::path snapshots = directory.parent_path(), repository = snapshots.parent_path();
  const std::string name = repository.filename();
  const bool is_repository =
      std::ranges::any_of(kRepositories, [&](const char* begin) { return name.starts_with(begin); });
  if (snapshots.filename() != "snapshots" || !is_repository) return std::nullopt;
  return repository / "blobs";
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
  const fs::path model = fs::canonical(directory), file = fs::canonical(directory / name);
  const std::optional<fs::path> blobs = blobs_of(model);
  TORCH_CHECK_VALUE(
      is_within(file, model) || (blobs && is_within(file, *blobs)), (directory / name).string(),
      ": a file that is copied with a model must not be a link out of its directory; got a link to ",
      file.string(), "; replace the link by the file [SW0537]");
  return base::read_text(file, base::kMaxJsonBytes);  // tokenizer.json is the longest of them
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
