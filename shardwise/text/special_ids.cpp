#include "shardwise/text/special_ids.h"

#include <c10/util/Exception.h>

#include "shardwise/base/files.h"
#include "shardwise/text/json_fields.h"

namespace shardwise::text {
namespace {

void read_id(const JsonPart& config, const char* name, const Tokenizer& tokenizer,
             std::optional<int64_t>& id) {
  if (!config.has(name)) return;
  const auto& value = config.at(name);
  const std::string token = value.is_object() ? config.part(name).text("content") : config.text(name);
  id = tokenizer.id_of(token);
  if (!id) refuse(config.label(name), "a token of the vocabulary", token);
}

}  // namespace

SpecialIds named_special_ids(const std::string& folder, const Tokenizer& tokenizer, SpecialIds ids) {
  const std::string path = folder + "/tokenizer_config.json";
  if (!base::exists(path)) return ids;
  const auto json = base::parse_json(base::read_text(path), path);
  const JsonPart config{json, path + ": "};
  read_id(config, "bos_token", tokenizer, ids.bos);
  read_id(config, "eos_token", tokenizer, ids.eos);
  read_id(config, "pad_token", tokenizer, ids.pad);
  read_id(config, "unk_token", tokenizer, ids.unk);
  return ids;
}

}  // namespace shardwise::text
