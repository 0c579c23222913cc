#include "shardwise/text/special_ids.h"

#include "shardwise/text/model_directory.h"

namespace shardwise::text {
namespace {

void read_id(const JsonPart& config, const char* name, const Tokenizer& tokenizer,
             std::optional<int64_t>& id) {
  if (!config.has(name)) return;
  const std::string* token = token_text(config.at(name));
  if (!token) throw_invalid(config.label(name), "a string or an AddedToken", config.at(name));
  id = tokenizer.id_of(*token);
  if (!id) throw_invalid(config.label(name), "a token of the vocabulary", *token);
}

}  // namespace

SpecialIds special_ids_from_config(const JsonPart& config, const Tokenizer& tokenizer, SpecialIds ids) {
  read_id(config, "bos_token", tokenizer, ids.bos);
  read_id(config, "eos_token", tokenizer, ids.eos);
  read_id(config, "pad_token", tokenizer, ids.pad);
  read_id(config, "unk_token", tokenizer, ids.unk);
  return ids;
}

}  // namespace shardwise::text
