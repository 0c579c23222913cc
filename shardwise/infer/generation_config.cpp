#include "shardwise/infer/generation_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/base/log.h"

namespace shardwise::infer {
namespace {

using nlohmann::json;

constexpr int64_t kDefaultTopK = 50;  // transformers 5's default with do_sample

/// A field that changes the tokens in transformers but not here, with the value that changes nothing there.
struct Unsupported {
  const char* name;
  json neutral;
};

const Unsupported kUnsupported[] = {{"num_beams", 1},
                                    {"num_beam_groups", 1},
                                    {"num_return_sequences", 1},
                                    {"penalty_alpha", 0},
                                    {"dola_layers", nullptr},
                                    {"diversity_penalty", 0},
                                    {"guidance_scale", 1},
                                    {"sequence_bias", nullptr},
                                    {"force_words_ids", nullptr},
                                    {"constraints", nullptr},
                                    {"forced_bos_token_id", nullptr},
                                    {"exponential_decay_length_penalty", nullptr},
                                    {"encoder_repetition_penalty", 1},
                                    {"encoder_no_repeat_ngram_size", 0},
                                    {"epsilon_cutoff", 0},
                                    {"eta_cutoff", 0},
                                    {"top_h", nullptr},
                                    {"watermarking_config", nullptr},
                                    {"token_healing", false},
                                    {"max_time", nullptr}};

std::vector<std::string> unsupported_fields(const base::Fields& fields) {
  std::vector<std::string> found;
  for (const auto& [name, neutral] : kUnsupported) {
    const json* value = fields.find(name);
    if (value && *value != neutral) found.push_back(fmt::format("{} {}", name, base::shown(*value)));
  }
  return found;
}

/// Reads a list of lists of ids.
void read_sequences(const base::Fields& fields, const char* name,
                    std::vector<std::vector<int64_t>>& sequences) {
  const json* list = fields.find(name);
  if (!list) return;
  TORCH_CHECK_VALUE(list->is_array(), fields.label(name), " must be a list of lists of token ids; got ",
                    base::shown(*list), " [SW0542]");
  for (const json& sequence : *list) {
    TORCH_CHECK_VALUE(sequence.is_array(), fields.label(name), " must be a list of lists of token ids; got ",
                      base::shown(sequence), " in it [SW0542]");
    std::vector<int64_t>& ids = sequences.emplace_back();
    for (const json& id : sequence) ids.push_back(fields.to_integer(id, name));
  }
}

TokenRules read_rules(const base::Fields& fields) {
  TokenRules rules;
  fields.or_integers("suppress_tokens", rules.suppress_tokens);
  fields.or_integers("begin_suppress_tokens", rules.begin_suppress_tokens);
  fields.or_integer("no_repeat_ngram_size", rules.no_repeat_ngram_size);
  read_sequences(fields, "bad_words_ids", rules.bad_words_ids);
  fields.or_integer("min_new_tokens", rules.min_new_tokens);
  fields.or_integer("min_length", rules.min_length);
  fields.or_integers("forced_eos_token_id", rules.forced_eos_token_id);
  return rules;
}

Sampling read_sampling(const base::Fields& fields) {
  Sampling sampling;
  bool is_sampled = false;
  sampling.temperature = 1;
  fields.or_flag("do_sample", is_sampled);
  if (is_sampled) sampling.top_k = kDefaultTopK;
  fields.or_number("temperature", sampling.temperature);
  fields.or_integer("top_k", sampling.top_k);
  fields.or_number("top_p", sampling.top_p);
  fields.or_number("min_p", sampling.min_p);
  fields.or_number("typical_p", sampling.typical_p);
  fields.or_number("repetition_penalty", sampling.repetition_penalty);
  if (!is_sampled) sampling.temperature = 0;
  return sampling;
}

/// Reads a string or a list of strings, as transformers accepts them.
std::vector<std::string> read_stop_strings(const base::Fields& fields) {
  const json* value = fields.find("stop_strings");
  if (!value) return {};
  std::vector<std::string> strings;
  for (const json& text : value->is_array() ? *value : json::array({*value})) {
    const bool is_text = text.is_string() && !text.get_ref<const std::string&>().empty();
    TORCH_CHECK_VALUE(is_text, fields.label("stop_strings"), " must be a list of nonempty strings; got ",
                      base::shown(text), " [SW0543]");
    strings.push_back(text.get<std::string>());
  }
  return strings;
}

std::optional<int64_t> read_limit(const base::Fields& fields, const char* name) {
  if (!fields.find(name)) return std::nullopt;
  const int64_t count = fields.integer(name);
  TORCH_CHECK_VALUE(count >= 1, fields.label(name), " must be 1 or more; got ", count, " [SW0070]");
  return count;
}

}  // namespace

GenerationConfig read_generation_config(const std::string& directory) {
  GenerationConfig config;
  const std::string path = directory + "/generation_config.json";
  if (!base::exists(path)) return config;
  const json object = base::read_json(path);
  const base::Fields fields(object, path + ": ");
  config.sampling = read_sampling(fields);
  config.rules = read_rules(fields);
  config.max_new_tokens = read_limit(fields, "max_new_tokens");
  config.max_length = read_limit(fields, "max_length");
  config.stop_strings = read_stop_strings(fields);
  fields.or_integers("eos_token_id", config.eos_token_ids);
  config.unsupported = unsupported_fields(fields);
  check_sampling(config.sampling, path);
  return config;
}

void warn_of_unsupported_fields(const GenerationConfig& config, const std::string& command) {
  if (config.unsupported.empty()) return;
  base::log_warning(
      fmt::format("{}: generation_config.json should have only supported fields; got {}; tokens differ "
                  "from those of transformers [SW0544]",
                  command, fmt::join(config.unsupported, ", ")));
}

}  // namespace shardwise::infer
