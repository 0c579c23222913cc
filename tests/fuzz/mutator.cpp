#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

namespace shardwise::fuzz {
namespace {

using Json = nlohmann::ordered_json;

/// Errors: std::invalid_argument for deeper nesting than recursion has stack for; such inputs come from
/// Mutator::nested.
Json parsed(const std::string& text) {
  constexpr int kMaxDepth = 500;
  return Json::parse(text, [](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMaxDepth) throw std::invalid_argument("nested too deeply");
    return true;
  });
}

void collect(Json& node, std::vector<Json*>& nodes) {
  nodes.push_back(&node);
  if (!node.is_structured()) return;
  for (Json& child : node) collect(child, nodes);
}

std::vector<Json*> nodes_of(Json& tree) {
  std::vector<Json*> nodes;
  collect(tree, nodes);
  return nodes;
}

std::string text_of(const Json& tree) {
  return tree.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int byte = 0; byte < 8; ++byte) bytes += static_cast<char>(length >> (8 * byte));
  return bytes;
}

std::string Mutator::raw(const std::string& file, const std::string& other) {
  return bytes(one_in(8) ? other : file);
}

std::string Mutator::bytes(std::string text) {
  for (size_t edits = 1 + below(3); edits > 0 && !text.empty(); --edits) {
    const size_t at = below(text.size()), length = std::min(1 + below(12), text.size() - at);
    switch (below(4)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(below(text.size()), text.substr(at, length));
        break;
      case 3:
        text.resize(at);
        break;
    }
  }
  return text;
}

std::string Mutator::lines(const std::string& file, const std::string& other) {
  const size_t at = file.find('\n', below(file.size() + 1)), begin = at == std::string::npos ? 0 : at + 1;
  const size_t end = std::min(file.find('\n', begin), file.size());
  const std::string line = file.substr(begin, end - begin);
  const std::string donor = other.substr(0, other.find('\n'));
  std::string changed = one_in(8) ? std::string() : json(line, donor);
  if (one_in(8)) changed += (one_in(4) ? "" : "\n") + line;
  return file.substr(0, begin) + changed + file.substr(end);
}

/// Values that readers often handle wrongly: ends of ranges, other types, long and unusual strings.
Json Mutator::value() {
  static const std::array<Json, 26> values = {Json(0),
                                              Json(1),
                                              Json(2),
                                              Json(-1),
                                              Json(7),
                                              Json(1 << 20),
                                              Json(std::numeric_limits<int32_t>::max()),
                                              Json(int64_t{1} << 31),
                                              Json(int64_t{1} << 62),
                                              Json(std::numeric_limits<int64_t>::max()),
                                              Json(std::numeric_limits<int64_t>::min()),
                                              Json(std::numeric_limits<uint64_t>::max()),
                                              Json(0.0),
                                              Json(-0.0),
                                              Json(1.5),
                                              Json(1e-320),
                                              Json(1e308),
                                              Json(nullptr),
                                              Json(true),
                                              Json(false),
                                              Json(""),
                                              Json("line\nbreak\r\t\x01"),
                                              Json("../\xc3\xa9"),
                                              Json(std::string(3000, 'x')),
                                              Json(Json::array()),
                                              Json(Json::object())};
  return values[below(values.size())];
}

Json Mutator::changed_number(const Json& number) {
  if (number.is_number_float()) {
    const double x = number.get<double>();
    return std::array<Json, 4>{-x, x * 1e6, x / 1e6,
                               static_cast<int64_t>(std::clamp(x, -1e9, 1e9))}[below(4)];
  }
  const auto x = number.get<uint64_t>();  // unsigned, so that the arithmetic below wraps around
  return std::array<Json, 6>{x + 1, x - 1, 2 * x, x / 2, static_cast<double>(x), std::to_string(x)}[below(6)];
}

void Mutator::edit(Json& tree, const Json& other) {
  const std::vector<Json*> nodes = nodes_of(tree);
  Json& node = *nodes[below(nodes.size())];
  Json donor_tree = other;
  const std::vector<Json*> donors = nodes_of(donor_tree);
  const Json donor = *donors[below(donors.size())];
  if (node.is_object() && !node.empty() && !one_in(8)) {
    const std::string name = std::next(node.begin(), static_cast<int>(below(node.size()))).key();
    switch (below(4)) {
      case 0:
        node.erase(name);
        break;
      case 1:
        node[one_in(4) ? text_of(value()) : name + "x"] = node[name];
        break;
      case 2:
        if (donor.is_object()) node.update(donor);
        break;
      case 3:
        node[name] = one_in(2) ? value() : donor;
        break;
    }
  } else if (node.is_array() && !one_in(4)) {
    node.empty() || one_in(2) ? node.push_back(one_in(2) ? value() : donor) : node.erase(below(node.size()));
  } else if (node.is_number() && !one_in(3)) {
    node = changed_number(node);
  } else if (&node != nodes.front() || one_in(16)) {
    node = one_in(2) ? value() : donor;
  }
}

std::string Mutator::nested(std::string text) {
  const size_t depth = size_t{1} << below(18);
  const bool is_closed = one_in(2);
  const size_t at = text.find(':', below(text.size() + 1));
  std::string brackets(depth, '[');
  if (is_closed) brackets += std::string(depth, ']') + ",\"after\":";
  return at == std::string::npos ? brackets : text.insert(at + 1, brackets);
}

std::string Mutator::member_twice(std::string text, const Json& tree) {
  if (!tree.is_object() || tree.empty()) return text;
  const auto member = std::next(tree.begin(), static_cast<int>(below(tree.size())));
  return text.insert(1, text_of(Json(member.key())) + ":" + text_of(member.value()) + ",");
}

std::string Mutator::json(const std::string& text, const std::string& other) {
  Json tree = parsed(text);
  const Json donor = parsed(other);
  for (size_t edits = 1 + below(4); edits > 0; --edits) edit(tree, donor);
  std::string changed = text_of(tree);
  if (one_in(20)) changed = member_twice(std::move(changed), tree);
  if (one_in(50)) changed = nested(std::move(changed));
  return one_in(6) ? bytes(std::move(changed)) : changed;
}

std::string Mutator::safetensors(const std::string& file, const std::string& other) {
  const auto header_of = [](const std::string& contents) {
    uint64_t length = 0;
    for (int byte = 7; byte >= 0; --byte) length = length << 8 | static_cast<unsigned char>(contents[byte]);
    return contents.substr(8, length);
  };
  const std::string header = one_in(4) ? header_of(file) : json(header_of(file), header_of(other));
  std::string data = file.substr(8 + header_of(file).size());
  if (one_in(4)) data.resize(below(2 * data.size() + 2));
  const uint64_t length = one_in(10) ? random_() >> below(64) : header.size();
  const std::string changed = length_bytes(length) + header + data;
  return one_in(10) ? bytes(changed) : changed;
}

}  // namespace shardwise::fuzz
