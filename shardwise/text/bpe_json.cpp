// Constructs a Bpe from tokenizer.json.
#include <c10/util/Exception.h>

#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/text/bpe.h"
#include "shardwise/text/byte_fallback.h"
#include "shardwise/text/byte_level.h"
#include "shardwise/text/metaspace.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

using nlohmann::json;

namespace {

/// Returns the two tokens of a merge, which is written as "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_of(const json& value, const std::string& label) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const size_t blank = text.find(' ');
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) {
      return {text.substr(0, blank), text.substr(blank + 1)};
    }
  }
  throw_invalid(label, "two tokens, as \"a b\" or as a list", value);
}

void check_options(const JsonPart& json) {
  json.allow({"type", "vocab", "merges", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "dropout",
              "continuing_subword_prefix", "end_of_word_suffix"});
  if (json.has("type") && json.type() != "BPE") throw_invalid(json.label("type"), "BPE", json.type());
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (json.has(name) && !json.text(name).empty()) throw_invalid(json.label(name), "empty", json.text(name));
  }
  if (json.has("dropout") && json.fields.number("dropout") != 0) {
    throw_invalid(json.label("dropout"), "0", json.at("dropout"));
  }
}

}  // namespace

Bpe::Bpe(const JsonPart& json, bool is_byte_level) : is_byte_level_(is_byte_level) {
  check_options(json);
  ignores_merges_ = json.flag("ignore_merges", false);
  has_byte_fallback_ = json.flag("byte_fallback", false);
  fuses_unk_ = json.flag("fuse_unk", false);
  read_vocabulary(json);
  if (json.has("unk_token")) unk_ = id_of(json.text("unk_token"), json.label("unk_token"));
  read_symbols(json);
  read_merges(json);
}

void Bpe::read_vocabulary(const JsonPart& json) {
  const auto& vocabulary = json.at("vocab");
  if (!vocabulary.is_object()) throw_invalid(json.label("vocab"), "an object from tokens to ids", vocabulary);
  ids_.reserve(vocabulary.size());
  std::set<uint32_t> seen;
  for (const auto& [token, id] : vocabulary.items()) {
    const bool is_new = is_token_id(id) && seen.insert(id.get<uint32_t>()).second;
    if (!is_new) {  // only now, since a label takes longer than all else
      const std::string label = json.label("vocab.") + base::shown(token);
      token_id(id, label);
      throw_invalid(label, "a unique id", id);
    }
    ids_.emplace(token, id.get<uint32_t>());
  }
}

uint32_t Bpe::id_of(const std::string& token, const std::string& label) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) throw_invalid(label, "a token of the vocabulary", token);
  return found->second;
}

void Bpe::read_merges(const JsonPart& json) {
  const auto& merges = json.at("merges");
  if (!merges.is_array()) throw_invalid(json.label("merges"), "a list", merges);
  merges_ = MergeTable(merges.size());
  splits_at_metaspace_ = !is_byte_level_ && ids_.count(std::string(kMetaspace)) > 0;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string label = json.label("merges[" + std::to_string(rank) + "]");
    const auto [left, right] = merge_of(merges[rank], label);
    const uint32_t left_id = id_of(left, label), right_id = id_of(right, label);
    const uint32_t id = id_of(left + right, label);
    merges_.set(left_id, right_id, {static_cast<uint32_t>(rank), id});
    const std::string token = left + right;
    splits_at_metaspace_ = splits_at_metaspace_ && end_of_segment(token, 0) == token.size();
  }
}

void Bpe::read_symbols(const JsonPart& json) {
  if (is_byte_level_) {
    read_bytes(json, [](int byte) { return byte_characters()[byte]; });
    if (ignores_merges_) {
      for (const auto& [token, id] : ids_) {
        if (const auto bytes = bytes_of_token(token)) ids_of_words_.emplace(*bytes, id);
      }
    }
    return;
  }
  for (const auto& [token, id] : ids_) {
    const bool is_character = !token.empty() && utf8_unit(token, 0).length == token.size();
    if (is_character) ids_of_characters_.emplace(code_point(token, 0), id);
  }
  if (ignores_merges_) ids_of_words_ = ids_;
  if (has_byte_fallback_) {
    read_bytes(json, [](int byte) { return byte_fallback_token(static_cast<uint8_t>(byte)); });
  } else if (!unk_) {
    throw_invalid(json.label("unk_token"), "given if byte_fallback and ByteLevel are not", nlohmann::json());
  }
}

void Bpe::read_bytes(const JsonPart& json, const std::function<std::string(int)>& token_of) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(token_of(byte));
    TORCH_CHECK_VALUE(found != ids_.end(), json.label("vocab"),
                      " must have a token for every byte; got none for ", byte, ", ",
                      base::shown(token_of(byte)), " [SW0159]");
    ids_of_bytes_[byte] = found->second;
  }
}

}  // namespace shardwise::text
