#include "shardwise/base/measured_file.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "shardwise/base/environment.h"
#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/hash.h"

namespace shardwise::base {
namespace {

namespace fs = std::filesystem;

/// Returns the variable's value if it is an absolute path, as XDG requires, else "".
fs::path directory_named_by(const char* variable) {
  const fs::path path(env_text(variable).value_or(""));
  return path.is_absolute() ? path : fs::path();
}

fs::path cache_directory() {
  const fs::path cache = directory_named_by("XDG_CACHE_HOME"), home = directory_named_by("HOME");
  if (!cache.empty()) return cache / "shardwise";
  return home.empty() ? home : home / ".cache/shardwise";
}

}  // namespace

MeasuredFile::MeasuredFile(const std::string& kind, std::string measured_on)
    : measured_on_(std::move(measured_on)) {
  const fs::path directory = cache_directory();
  if (!directory.empty()) path_ = directory / fmt::format("{}-{:016x}", kind, hash_of(measured_on_));
}

std::string MeasuredFile::heading() const {
  return fmt::format("measured_on {}\n", measured_on_);
}

std::optional<std::string> MeasuredFile::read(int64_t max_bytes) const {
  std::error_code error;
  if (path_.empty() || fs::status(path_, error).type() == fs::file_type::not_found) return std::nullopt;
  const std::string text = read_text(path_, max_bytes), begin = heading();
  TORCH_CHECK_VALUE(text.starts_with(begin), path_, ": must be measured on ", measured_on_, "; got ",
                    start_of(text), " [SW0136]");
  return text.substr(begin.size());
}

void MeasuredFile::write(const std::string& result) const {
  TORCH_INTERNAL_ASSERT(!path_.empty());
  make_directories(fs::path(path_).parent_path());
  write_text(path_, heading() + result);
}

std::string start_of(std::string_view text) {
  return text.empty() ? "nothing" : fmt::format("'{}'", shortened(text, /*max_bytes=*/120));
}

}  // namespace shardwise::base
