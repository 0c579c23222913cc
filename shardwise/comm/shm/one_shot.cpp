#include "shardwise/comm/shm/one_shot.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <filesystem>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/environment.h"
#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/hash.h"
#include "shardwise/base/log.h"
#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {
namespace {

static_assert(kMaxOneShotBytes == int64_t(kInlineBytes));

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = 4096;

std::string description(const RanksOnCores& on, const std::string& cpu) {
  return fmt::format("{} ranks {}, {}", on.ranks, on.core_each ? "with a core each" : "that share cores",
                     cpu);
}

/// Returns the variable's value if it is an absolute path, as XDG requires, else "".
fs::path directory_named_by(const char* variable) {
  const fs::path path(base::env_text(variable).value_or(""));
  return path.is_absolute() ? path : fs::path();
}

fs::path cache_directory() {
  const fs::path cache = directory_named_by("XDG_CACHE_HOME"), home = directory_named_by("HOME");
  if (!cache.empty()) return cache / "shardwise";
  return home.empty() ? home : home / ".cache/shardwise";
}

/// The file has two lines, "measured_on DESCRIPTION" and "one_shot_bytes N".
std::string heading(const RanksOnCores& on) {
  return fmt::format("measured_on {}\none_shot_bytes ", description(on, base::cpu_name()));
}

/// Returns the start of a file's text, for an error.
std::string start_of(std::string_view text) {
  return text.empty() ? "nothing" : fmt::format("'{}'", base::shortened(text, /*max_bytes=*/120));
}

/// Errors: c10::ValueError if the file is not of this format or was measured on another machine.
int64_t read_limit(const std::string& path, const RanksOnCores& on) {
  const std::string text = base::read_text(path, kMaxFileBytes), begin = heading(on);
  TORCH_CHECK_VALUE(text.starts_with(begin), path, ": must be measured on ",
                    description(on, base::cpu_name()), "; got ", start_of(text), " [SW0136]");
  int64_t bytes = -1;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + begin.size(), last, bytes);
  const bool is_number = error == std::errc() && std::string_view(end, last) == "\n";
  TORCH_CHECK_VALUE(is_number && bytes >= 0 && bytes <= kMaxOneShotBytes, path,
                    ": must end with a number of bytes from 0 to ", kMaxOneShotBytes, "; got ",
                    start_of(std::string_view(text).substr(begin.size())), " [SW0137]");
  return bytes;
}

}  // namespace

// Measured with 2, 3, 4 and 8 ranks on 2 cores (docs/algorithms.md).
OneShotLimit default_one_shot_limit(const RanksOnCores& on) {
  return {on, on.core_each ? 1024 : kMaxOneShotBytes, OneShotLimit::From::table};
}

OneShotLimit one_shot_limit(const RanksOnCores& on) {
  const OneShotLimit default_limit = default_one_shot_limit(on);
  const std::string path = one_shot_file(on);
  std::error_code error;
  if (path.empty() || fs::status(path, error).type() == fs::file_type::not_found) return default_limit;
  try {
    return {on, read_limit(path, on), OneShotLimit::From::measured};
  } catch (const c10::Error& rejected) {
    base::log_warning(
        base::with_code_last(fmt::format("all_reduce: {}; the default of {} bytes is used [SW0135]",
                                         base::one_line(rejected), default_limit.bytes)));
    return default_limit;
  }
}

std::string one_shot_file(const RanksOnCores& on) {
  const fs::path directory = cache_directory();
  if (directory.empty()) return "";
  return directory / fmt::format("comm-{:016x}", base::hash_of(description(on, base::cpu_name())));
}

void save_one_shot_limit(const RanksOnCores& on, int64_t bytes) {
  const std::string path = one_shot_file(on);
  TORCH_INTERNAL_ASSERT(!path.empty());
  base::make_directories(fs::path(path).parent_path());
  base::write_text(path, fmt::format("{}{}\n", heading(on), bytes));
}

}  // namespace shardwise::comm::shm
