#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/input.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/tokenize.h"
#include "shardwise/text/invalid_utf8.h"
#include "shardwise/text/utf8.h"

namespace shardwise::cli {
namespace {

using nlohmann::json;

std::string shown_ids(const std::vector<int64_t>& ids) {
  std::string text = "[";
  for (const int64_t id : ids) text.append(text.size() > 1 ? ", " : "").append(std::to_string(id));
  return text + "]";
}

std::string string_of(const std::string& line) {
  const json value = base::parse_json(line, "tokenize");
  TORCH_CHECK_VALUE(value.is_string(), "tokenize: --json-lines needs JSON strings; got ", base::shown(value),
                    " [SW0102]");
  return value.get<std::string>();
}

bool is_id(const json& value) {
  const bool is_beyond =
      value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  return value.is_number_integer() && !is_beyond;
}

std::vector<int64_t> ids_of(const std::string& line) {
  const json value = base::parse_json(line, "tokenize");
  TORCH_CHECK_VALUE(value.is_array() && std::all_of(value.begin(), value.end(), is_id),
                    "tokenize: --decode needs JSON arrays of integers below 2^63; got ", base::shown(value),
                    " [SW0103]");
  return value.get<std::vector<int64_t>>();
}

std::string convert(const text::Tokenizer& tokenizer, const std::string& line, const TokenizeOptions& o) {
  if (o.mode == TokenizeMode::decode) {
    return json(text::replace_invalid(tokenizer.decode(ids_of(line), o.specials()))).dump();
  }
  std::vector<int64_t> ids;
  tokenizer.encode(o.mode == TokenizeMode::json_lines ? string_of(line) : line, o.specials(), ids);
  return shown_ids(ids);
}

}  // namespace

void tokenize_lines(const text::Tokenizer& tokenizer, const TokenizeOptions& options) {
  text::InvalidUtf8 invalid;
  int64_t number = 0;
  while (const auto line = read_line()) {
    ++number;
    try {
      if (options.mode == TokenizeMode::lines) invalid.add(tokenizer, *line, c10::str("line ", number));
      print(convert(tokenizer, *line, options) + "\n");
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, base::with_code_last(c10::str("line ", number, ": ",
                                                             error.what_without_backtrace(), " [SW0101]")));
    }
  }
  invalid.warn("tokenize");
}

}  // namespace shardwise::cli
