#include "shardwise/comm/shm/one_shot.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/error.h"
#include "shardwise/base/log.h"
#include "shardwise/base/measured_file.h"
#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {
namespace {

static_assert(kMaxOneShotBytes == int64_t(kInlineBytes));

constexpr int64_t kMaxFileBytes = 4096;
constexpr std::string_view kKey = "one_shot_bytes ";

/// The result is a line "one_shot_bytes N".
base::MeasuredFile file_of(const RanksOnCores& on) {
  return {"comm", fmt::format("{} ranks {}, {}", on.ranks,
                              on.core_each ? "with a core each" : "that share cores", base::cpu_name())};
}

/// Errors: c10::ValueError.
int64_t limit_of(std::string_view result, const std::string& path) {
  int64_t bytes = -1;
  const char* const last = result.data() + result.size();
  const bool has_key = result.starts_with(kKey);
  const auto [end, error] = std::from_chars(result.data() + (has_key ? kKey.size() : 0), last, bytes);
  const bool is_number = has_key && error == std::errc() && std::string_view(end, last) == "\n";
  TORCH_CHECK_VALUE(is_number && bytes >= 0 && bytes <= kMaxOneShotBytes, path, ": must end with '", kKey,
                    "' and a number of bytes from 0 to ", kMaxOneShotBytes, "; got ", base::start_of(result),
                    " [SW0137]");
  return bytes;
}

}  // namespace

// Measured with 2, 3, 4 and 8 ranks on 2 cores (docs/algorithms.md).
OneShotLimit default_one_shot_limit(const RanksOnCores& on) {
  return {on, on.core_each ? 1024 : kMaxOneShotBytes, OneShotLimit::From::table};
}

OneShotLimit one_shot_limit(const RanksOnCores& on) {
  const OneShotLimit default_limit = default_one_shot_limit(on);
  const base::MeasuredFile file = file_of(on);
  try {
    const std::optional<std::string> result = file.read(kMaxFileBytes);
    return result ? OneShotLimit{on, limit_of(*result, file.path()), OneShotLimit::From::measured}
                  : default_limit;
  } catch (const c10::Error& rejected) {
    base::log_warning(
        base::with_code_last(fmt::format("all_reduce: {}; the default of {} bytes is used [SW0135]",
                                         base::one_line(rejected), default_limit.bytes)));
    return default_limit;
  }
}

std::string one_shot_file(const RanksOnCores& on) {
  return file_of(on).path();
}

void save_one_shot_limit(const RanksOnCores& on, int64_t bytes) {
  file_of(on).write(fmt::format("{}{}\n", kKey, bytes));
}

}  // namespace shardwise::comm::shm
