#include "shardwise/checkpoint/atomic_directory.h"

#include <vector>

#include "shardwise/base/files.h"
#include "shardwise/base/random.h"
#include "shardwise/checkpoint/auxiliary_files.h"
#include "shardwise/checkpoint/contents.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> auxiliary_files_in(const fs::path& directory) {
  std::vector<std::string> names = tokenizer_auxiliary_files_in(directory);
  const auto add_if_present = [&](const char* name) {
    if (base::exists(directory / name)) names.emplace_back(name);
  };
  for (const char* name : {kConfigFile, kGenerationConfig, kUnnamedTokenizer}) add_if_present(name);
  for (const char* name : kTokenizerFiles) add_if_present(name);
  return names;
}

void check_is_new(bool is_new, const std::string& op, const fs::path& target) {
  TORCH_CHECK_VALUE(is_new, op, ": the output directory must not exist yet; got ", target.string(),
                    " [SW0287]");
}

fs::path clean_temporary_path(const fs::path& target) {
  remove_stale_siblings(target);
  return temporary_sibling(target, base::random_bits());
}

}  // namespace

fs::path new_target_path(const std::string& op, const fs::path& out) {
  fs::path target = fs::absolute(out).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  check_is_new(fs::symlink_status(target).type() == fs::file_type::not_found, op, target);
  TORCH_CHECK_VALUE(base::is_directory(target.parent_path()), op,
                    ": the parent of the output directory must exist; got ", target.string(), " [SW0288]");
  return target;
}

void copy_auxiliary_files(const fs::path& in, const fs::path& out) {
  for (const std::string& name : auxiliary_files_in(in)) {
    write_auxiliary_file(out, name, read_auxiliary_file(in, name));
  }
}

AtomicDirectory::AtomicDirectory(std::string op, fs::path target)
    : op_(std::move(op)),
      target_(std::move(target)),
      path_(clean_temporary_path(target_)),
      directory_(path_) {}

void AtomicDirectory::publish() {
  check_is_new(directory_.publish_new(target_), op_, target_);
}

}  // namespace shardwise::checkpoint
