#include "shardwise/checkpoint/new_directory.h"

#include <unistd.h>

#include <vector>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/companions.h"
#include "shardwise/checkpoint/contents.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> companion_names() {
  std::vector<std::string> names{kConfigFile, kGenerationConfig, kUnnamedTokenizer};
  names.insert(names.end(), std::begin(kTokenizers), std::end(kTokenizers));
  names.insert(names.end(), std::begin(kBesideTokenizer), std::end(kBesideTokenizer));
  return names;
}

void check_is_new(bool is_new, const std::string& op, const fs::path& target) {
  TORCH_CHECK_VALUE(is_new, op, ": the directory to write must not exist yet; got ", target.string());
}

fs::path stale_removed(const fs::path& target) {
  remove_stale_beside(target);
  return temporary_beside(target, getpid());
}

}  // namespace

fs::path free_target(const std::string& op, const fs::path& out) {
  fs::path target = fs::absolute(out).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  check_is_new(fs::symlink_status(target).type() == fs::file_type::not_found, op, target);
  TORCH_CHECK_VALUE(base::is_directory(target.parent_path()), op,
                    ": the directory to write must lie in a directory; got ", target.string());
  return target;
}

void copy_companions(const fs::path& in, const fs::path& out) {
  for (const std::string& name : companion_names()) {
    if (base::exists(in / name)) base::write_text(out / name, base::read_text(in / name));
  }
}

NewDirectory::NewDirectory(std::string op, fs::path target)
    : op_(std::move(op)), target_(std::move(target)), path_(stale_removed(target_)), directory_(path_) {}

void NewDirectory::publish() {
  check_is_new(directory_.publish_new(target_), op_, target_);  // still
}

}  // namespace shardwise::checkpoint
