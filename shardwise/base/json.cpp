#include "shardwise/base/json.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"

namespace shardwise::base {

using nlohmann::json;

namespace {

// Far deeper than any file that we read. Printing a value recurses once per level.
constexpr int kMaxDepth = 100;
constexpr size_t kMaxTextChars = 40, kMaxShownChars = 60;

bool is_short_and_printable(const std::string& text) {
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~'; };
  return text.size() <= kMaxTextChars && std::all_of(text.begin(), text.end(), is_plain);
}

void append_text(std::string_view value, std::string& text) {
  const json begin(value.substr(0, kMaxShownChars));
  text += begin.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

/// Appends the value as JSON, but no more than a message shows: printing all of a large one would take
/// gigabytes.
void append_shown(const json& value, std::string& text) {
  if (text.size() > kMaxShownChars) return;
  if (value.is_string()) {
    append_text(value.get_ref<const std::string&>(), text);
  } else if (value.is_structured()) {
    text += value.is_array() ? '[' : '{';
    bool is_first = true;
    for (const auto& [key, element] : value.items()) {
      if (!std::exchange(is_first, false)) text += ',';
      if (value.is_object()) {
        append_text(key, text);
        text += ':';
      }
      append_shown(element, text);
      if (text.size() > kMaxShownChars) return;
    }
    text += value.is_array() ? ']' : '}';
  } else {
    text += value.dump();
  }
}

}  // namespace

std::string shown(const json& value) {
  std::string text;
  append_shown(value, text);
  return shortened(text, kMaxShownChars);
}

std::string shown(const std::string& value) {
  std::string text;
  append_text(value, text);
  return shortened(text, kMaxShownChars);
}

json parse_json(const std::string& text, const std::string& where, int64_t max_bytes) {
  TORCH_CHECK_VALUE(std::ssize(text) <= max_bytes, where, ": JSON must have at most ", max_bytes,
                    " bytes; got ", text.size(), " [SW0622]");
  std::vector<std::set<std::string>> names;  // keys of the objects that enclose the current position
  const auto on_event = [&](int depth, json::parse_event_t event, json& value) {
    TORCH_CHECK_VALUE(depth <= kMaxDepth, where, ": must nest at most ", kMaxDepth,
                      " levels; got more [SW0254]");
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key) {
      TORCH_CHECK_VALUE(names.back().insert(value.get<std::string>()).second, where, ": ", shown(value),
                        " must not be duplicated; got it twice [SW0255]");
    }
    return true;
  };
  // The parser takes one as the end of the text.
  TORCH_CHECK_VALUE(text.find('\0') == std::string::npos, where, ": must be JSON; got a NUL byte [SW0009]");
  try {
    return json::parse(text, on_event);
  } catch (const json::exception& error) {
    C10_THROW_ERROR(ValueError,
                    where + ": must be JSON; got " + shortened(error.what(), kMaxReasonBytes) + " [SW0009]");
  }
}

json read_json(const std::string& path) {
  return parse_json(read_text(path, kMaxJsonBytes), path);
}

void throw_invalid(const std::string& label, const std::string& rule, const json& value) {
  TORCH_CHECK_VALUE(false, label, " must be ", rule, "; got ", shown(value), " [SW0176]");
}

void throw_invalid(const std::string& label, const std::string& rule, const std::string& value) {
  throw_invalid(label, rule, json(value));
}

Fields::Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  // Strips the separator from prefixes such as "config.json: " and "config.json: rope_scaling.".
  const std::string subject = where_.substr(0, where_.find_last_not_of(" .") + 1);
  TORCH_CHECK_VALUE(object.is_object(), subject, " must be a JSON object; got ", shown(object), " [SW0253]");
}

const json* Fields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Fields::is_null(const char* name) const {
  const auto found = object_.find(name);
  return found != object_.end() && found->is_null();
}

int64_t Fields::integer(const char* name) const {
  return to_integer(at(name), name);
}

double Fields::number(const char* name) const {
  const json& value = at(name);
  check(value.is_number(), name, "a number", value);
  return value.get<double>();
}

std::string Fields::text(const char* name) const {
  const json& value = at(name);
  check(value.is_string(), name, "a string", value);
  check(is_short_and_printable(value.get<std::string>()), name, "at most 40 printable ASCII characters",
        value);
  return value.get<std::string>();
}

void Fields::or_integer(const char* name, int64_t& value) const {
  if (find(name)) value = integer(name);
}

void Fields::or_number(const char* name, double& value) const {
  if (find(name)) value = number(name);
}

void Fields::or_text(const char* name, std::string& value) const {
  if (find(name)) value = text(name);
}

void Fields::or_flag(const char* name, bool& value) const {
  const json* field = find(name);
  if (!field) return;
  check(field->is_boolean(), name, "true or false", *field);
  value = field->get<bool>();
}

void Fields::or_integers(const char* name, std::vector<int64_t>& values) const {
  const json* field = find(name);
  if (!field) return;
  values.clear();
  for (const json& value : field->is_array() ? *field : json::array({*field}))
    values.push_back(to_integer(value, name));
}

int64_t Fields::to_integer(const json& value, const char* name) const {
  check(value.is_number_integer(), name, "an integer", value);
  const bool fits =
      !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  check(fits, name, "below 2^63", value);
  return value.get<int64_t>();
}

std::string Fields::label(const std::string& name) const {
  constexpr size_t kMaxNameBytes = 100;  // the longest of ours is a token that `shown` formats, in `vocab`
  return where_ + shortened(name, kMaxNameBytes);
}

const json& Fields::at(const char* name) const {
  const json* field = find(name);
  TORCH_CHECK_VALUE(field, label(name), " must be given; got none [SW0177]");
  return *field;
}

void Fields::check(bool is_met, const char* name, const char* rule, const json& value) const {
  if (!is_met) throw_invalid(label(name), rule, value);
}

}  // namespace shardwise::base
