#include "shardwise/infer/generation_config.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"

namespace shardwise::infer {
namespace {

constexpr int64_t kDefaultTopK = 50;  // transformers 5's default with do_sample

}  // namespace

GenerationConfig read_generation_config(const std::string& directory) {
  GenerationConfig config;
  const std::string path = directory + "/generation_config.json";
  if (!base::exists(path)) return config;
  const nlohmann::json object = base::parse_json(base::read_text(path), path);
  const base::Fields fields(object, path + ": ");
  Sampling& sampling = config.sampling;
  bool is_sampled = false;
  sampling.temperature = 1;
  fields.or_flag("do_sample", is_sampled);
  if (is_sampled) sampling.top_k = kDefaultTopK;
  fields.or_number("temperature", sampling.temperature);
  fields.or_integer("top_k", sampling.top_k);
  fields.or_number("top_p", sampling.top_p);
  fields.or_number("min_p", sampling.min_p);
  fields.or_number("repetition_penalty", sampling.repetition_penalty);
  if (!is_sampled) sampling.temperature = 0;
  if (int64_t count = 0; fields.find("max_new_tokens")) {
    fields.or_integer("max_new_tokens", count);
    TORCH_CHECK_VALUE(count >= 1, path, ": max_new_tokens must be at least 1; got ", count, " [SW0070]");
    config.max_new_tokens = count;
  }
  fields.or_integers("eos_token_id", config.eos_token_ids);
  check_sampling(sampling, path);
  return config;
}

}  // namespace shardwise::infer
