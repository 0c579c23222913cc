#include "shardwise/cli/train_log.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/base/files.h"

namespace shardwise::cli {
namespace {

bool is_of_later_step(const std::string& line, int64_t step) {
  const auto record = nlohmann::json::parse(line, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("step")) return false;
  return record["step"].is_number_integer() && record["step"].get<int64_t>() > step;
}

}  // namespace

int64_t drop_steps_after(const std::string& path, int64_t step) {
  std::error_code missing;
  if (!std::filesystem::is_regular_file(path, missing)) return 0;
  std::istringstream lines(base::read_text(path));
  std::string kept;
  int64_t dropped = 0;
  for (std::string line; std::getline(lines, line);) {
    if (is_of_later_step(line, step)) {
      ++dropped;
    } else {
      kept += line + '\n';
    }
  }
  if (dropped > 0) base::write_text(path, kept);
  return dropped;
}

}  // namespace shardwise::cli
