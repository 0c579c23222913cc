#include "shardwise/text/post_processor.h"

#include <nlohmann/json.hpp>

namespace shardwise::text {

using nlohmann::json;

namespace {

void append_special(const JsonPart& processor, const JsonPart& piece, std::vector<int64_t>& ids) {
  const std::string name = piece.text("id");
  const JsonPart tokens = processor.part("special_tokens");
  const JsonPart token = tokens.part(name.c_str());
  const json& list = token.at("ids");
  if (!list.is_array()) throw_invalid(token.label("ids"), "a list", list);
  for (const json& id : list) ids.push_back(token_id(id, token.label("ids")));
}

/// Reads TemplateProcessing's `single`: special tokens and exactly one Sequence, the text.
PostProcessor read_single(const JsonPart& processor) {
  processor.allow({"type", "single", "pair", "special_tokens"});
  PostProcessor result;
  int texts = 0;
  for (const JsonPart& piece : processor.parts("single")) {
    piece.allow({"Sequence", "SpecialToken"});
    if (piece.has("Sequence")) {
      ++texts;
    } else {
      append_special(processor, piece.part("SpecialToken"), texts > 0 ? result.after : result.before);
    }
  }
  if (texts != 1)
    throw_invalid(processor.label("single"), "a template with one Sequence", processor.at("single"));
  return result;
}

}  // namespace

PostProcessor read_post_processor(const JsonPart& processor) {
  const std::string type = processor.type();
  if (type == "TemplateProcessing") return read_single(processor);
  if (type == "ByteLevel") {  // affects offsets only
    processor.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (type != "Sequence") {
    throw_invalid(processor.label("type"), "Sequence, TemplateProcessing or ByteLevel", type);
  }
  processor.allow({"type", "processors"});
  PostProcessor result;
  for (const JsonPart& step : processor.parts("processors")) {
    const PostProcessor part = read_post_processor(step);
    result.before.insert(result.before.begin(), part.before.begin(), part.before.end());
    result.after.insert(result.after.end(), part.after.begin(), part.after.end());
  }
  return result;
}

}  // namespace shardwise::text
