#include "shardwise/cli/generate_requests.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/ordered_json.h"
#include "shardwise/text/chat_template.h"

namespace shardwise::cli {
namespace {

using text::OrderedJson;

// Of a batch file, whose lines are read one by one: a prompt of a million ids has 8 MB.
constexpr int64_t kMaxLineBytes = int64_t{16} << 20;
constexpr int64_t kMaxSequences = 1'000'000;
constexpr int64_t kNewTokens = 100;  // default without --max-new-tokens and generation_config.json

class PromptReader {
 public:
  PromptReader(const text::Tokenizer* tokenizer, const std::string& directory)
      : tokenizer_(tokenizer), directory_(directory) {}

  Prompt of_text(const std::string& text, const std::string& where) const {
    return prompt_of(text, encoded(text, text::SpecialTokens::with), where);
  }

  Prompt of_chat(const OrderedJson& messages) const {
    if (!chat_template_) chat_template_ = text::ChatTemplate::load(directory_);
    // The template writes the special tokens itself.
    return {encoded(chat_template_->render(messages), text::SpecialTokens::without)};
  }

  static Prompt of_ids(const std::string& list) {
    Prompt prompt;
    for (const std::string& id : parts_of(list))
      read_value("generate: --prompt-ids", id, prompt.ids.emplace_back());
    return prompt;
  }

  Prompt of_line(const std::string& line, const std::string& where) const {
    const nlohmann::json object = base::parse_json(line, where, kMaxLineBytes);
    const base::Fields fields(object, where + ": ");
    check_keys(object, where);
    Prompt prompt =
        object.contains("messages") ? of_chat_line(line, where) : of_fields(object, fields, where);
    prompt.where = where;
    if (fields.find("max_new_tokens")) {
      prompt.max_new_tokens = fields.integer("max_new_tokens");
      TORCH_CHECK_VALUE(*prompt.max_new_tokens >= 1, fields.label("max_new_tokens"),
                        " must be 1 or more; got ", *prompt.max_new_tokens, " [SW0070]");
    }
    return prompt;
  }

 private:
  /// Calls `read`, whose errors, those of the tokenizer and the chat template, name neither file nor line.
  template <class Read>
  static auto at(const std::string& where, const Read& read) {
    try {
      return read();
    } catch (const c10::ValueError& error) {
      C10_THROW_ERROR(ValueError, where + ": " + error.what_without_backtrace());
    }
  }

  Prompt of_chat_line(const std::string& line, const std::string& where) const {
    const OrderedJson messages = parse_ordered(line, where)["messages"];
    return at(where, [&] { return of_chat(messages); });
  }

  Prompt prompt_of(const std::string& text, std::vector<int64_t> ids, const std::string& where) const {
    if (ids.empty()) ids = {bos(where)};
    return {std::move(ids), text};
  }

  /// Rejects unknown fields, which would be ignored.
  static void check_keys(const nlohmann::json& object, const std::string& where) {
    int prompts = 0;
    for (const auto& [key, value] : object.items()) {
      const bool is_prompt = key == "prompt" || key == "prompt_ids" || key == "messages";
      TORCH_CHECK_VALUE(is_prompt || key == "max_new_tokens", where,
                        ": must have no fields but prompt, prompt_ids, messages and max_new_tokens; got ",
                        base::shown(key), " [SW0069]");
      prompts += is_prompt;
    }
    TORCH_CHECK_VALUE(prompts == 1, where, ": must have exactly one of prompt, prompt_ids and messages; got ",
                      prompts, " [SW0071]");
  }

  Prompt of_fields(const nlohmann::json& object, const base::Fields& fields, const std::string& where) const {
    if (object.contains("prompt_ids")) {
      Prompt prompt;
      fields.or_integers("prompt_ids", prompt.ids);
      return prompt;
    }
    const nlohmann::json& text = object["prompt"];
    TORCH_CHECK_VALUE(text.is_string(), fields.label("prompt"), " must be a string; got ", base::shown(text),
                      " [SW0072]");
    const auto content = text.get<std::string>();
    return prompt_of(content, at(where, [&] { return encoded(content, text::SpecialTokens::with); }), where);
  }

  int64_t bos(const std::string& where) const {
    const std::optional<int64_t> id = tokenizer_->special_ids().bos;
    TORCH_CHECK_VALUE(id, where,
                      ": an empty prompt needs a tokenizer with a BOS token; got none in its files; give a "
                      "text or token ids [SW0589]");
    return *id;
  }

  std::vector<int64_t> encoded(const std::string& text, text::SpecialTokens specials) const {
    std::vector<int64_t> ids;
    tokenizer_->encode(text, specials, ids);
    return ids;
  }

  const text::Tokenizer* tokenizer_;
  const std::string& directory_;
  mutable std::optional<text::ChatTemplate> chat_template_;  // loaded by the first chat
};

std::string text_of(const std::string& path, const GenerateOptions& o) {
  return path == "-" ? o.input.value() : base::read_text(path);
}

std::vector<Prompt> read_batch(const GenerateOptions& o, const PromptReader& reader) {
  const std::string path = *o.batch_file == "-" ? "standard input" : *o.batch_file;
  std::vector<Prompt> prompts;
  std::istringstream in(text_of(*o.batch_file, o));
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string where = path + ": line " + std::to_string(++number);
    if (line.find_first_not_of(" \t\r") != std::string::npos) prompts.push_back(reader.of_line(line, where));
  }
  TORCH_CHECK_VALUE(!prompts.empty(), path, ": must have a line with a prompt; got none [SW0073]");
  return prompts;
}

infer::Sampling sampling_of(const GenerateOptions& o, infer::Sampling sampling) {
  sampling.temperature = o.temperature.value_or(sampling.temperature);
  sampling.top_k = o.top_k.value_or(sampling.top_k);
  sampling.top_p = o.top_p.value_or(sampling.top_p);
  sampling.min_p = o.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = o.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.seed = o.seed;
  const bool asks_for_chance = o.top_k || o.top_p || o.min_p || o.num_return > 1;
  TORCH_CHECK_VALUE(
      sampling.temperature > 0 || !asks_for_chance,
      "generate: --top-k, --top-p, --min-p and --num-return need a --temperature above 0; got 0 [SW0056]");
  return sampling;
}

/// Returns the request's limit; a default limit is lowered to what fits the model's context.
int64_t new_tokens_of(const Prompt& prompt, const GenerateOptions& o, const infer::GenerationConfig& defaults,
                      const config::Config& config) {
  if (prompt.max_new_tokens) return *prompt.max_new_tokens;
  if (o.max_new_tokens) return *o.max_new_tokens;
  const int64_t length = std::ssize(prompt.ids);
  int64_t limit = defaults.max_new_tokens.value_or(kNewTokens);
  if (defaults.max_length && !defaults.max_new_tokens) {
    limit = *defaults.max_length - length;
    TORCH_CHECK_VALUE(limit > 0, prompt.where,
                      ": the prompt must be shorter than max_length of generation_config.json, ",
                      *defaults.max_length, "; got ", length, " tokens; give --max-new-tokens [SW0545]");
  }
  return std::min(limit, std::max<int64_t>(config.max_position_embeddings - length, 1));
}

}  // namespace

std::vector<Prompt> read_prompts(const GenerateOptions& o, const text::Tokenizer* tokenizer,
                                 const std::string& directory) {
  const PromptReader reader(tokenizer, directory);
  if (o.prompt_ids) return {PromptReader::of_ids(*o.prompt_ids)};
  if (o.batch_file) return read_batch(o, reader);
  const std::string text = o.prompt ? *o.prompt : text_of(*o.prompt_file, o);
  if (!o.chat) return {reader.of_text(text, "generate")};
  return {reader.of_chat(OrderedJson::array({{{"role", "user"}, {"content", text}}}))};
}

std::vector<infer::Request> make_requests(const std::vector<Prompt>& prompts, const GenerateOptions& o,
                                          const infer::GenerationConfig& defaults,
                                          const config::Config& config) {
  TORCH_CHECK_VALUE(o.num_return <= kMaxSequences / std::max<int64_t>(std::ssize(prompts), 1),
                    "generate: prompts x --num-return must be at most ", kMaxSequences, " sequences; got ",
                    prompts.size(), " x ", o.num_return, "; split the batch [SW0620]");
  std::vector<infer::Request> requests;
  for (const Prompt& prompt : prompts) {
    infer::Request request{prompt.ids, new_tokens_of(prompt, o, defaults, config),
                           sampling_of(o, defaults.sampling), o.logprobs, defaults.rules};
    infer::check_request(request, config, prompt.where);
    for (int64_t i = 0; i < o.num_return; ++i) {
      requests.push_back(request);
      ++request.sampling.seed;
    }
  }
  return requests;
}

}  // namespace shardwise::cli
