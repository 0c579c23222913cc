#include "shardwise/cli/train_log.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/base/files.h"

namespace shardwise::cli {
namespace {

constexpr size_t kMaxRecordBytes = 1 << 16;  // a record has some hundred

bool may_be_a_record(const std::string& line) {
  return line.starts_with('{') && line.size() <= kMaxRecordBytes;
}

nlohmann::json parsed(const std::string& line) {
  return nlohmann::json::parse(line, /*callback=*/nullptr, /*allow_exceptions=*/false);
}

bool is_of_later_step(const std::string& line, int64_t step) {
  if (!may_be_a_record(line)) return false;
  const nlohmann::json record = parsed(line);
  if (!record.is_object() || !record.contains("step")) return false;
  return record["step"].is_number_integer() && record["step"].get<int64_t>() > step;
}

}  // namespace

int64_t drop_steps_after(const std::string& path, int64_t step) {
  std::error_code missing;
  if (!std::filesystem::is_regular_file(path, missing)) return 0;
  const std::string text = base::read_text(path);
  std::istringstream lines(text);
  std::string kept;
  int64_t dropped = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool is_last_without_end = lines.eof();
    if (is_last_without_end && may_be_a_record(line) && parsed(line).is_discarded()) break;
    if (is_of_later_step(line, step)) {
      ++dropped;
    } else {
      kept += line + '\n';
    }
  }
  // The rename would replace a link by a file.
  if (kept != text) base::write_text(std::filesystem::canonical(path), kept);
  return dropped;
}

}  // namespace shardwise::cli
