// A model's chat template: from the messages of a conversation to the text that the model was trained on.
//
// Reading the model's directory and choosing the template are here; jinja/ renders it, in a module that is
// opened at the first rendering (docs/adr/0011).
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace shardwise::text {

/// Values of JSON whose objects keep the order that they were written in: templates print them.
using OrderedJson = nlohmann::ordered_json;

struct ChatOptions {
  bool add_generation_prompt = true;
  /// JSON schemas of functions that the model may call, a list. An empty list is not the same as none.
  std::optional<OrderedJson> tools;
  /// An object with further variables of the template, such as Qwen3's enable_thinking.
  OrderedJson variables = OrderedJson::object();
};

/// What transformers' `apply_chat_template(tokenize=False)` does with the same directory, to the byte.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja and additional_chat_templates/*.jinja, which go before the chat_template of
  /// tokenizer_config.json, and the special tokens there and in the older special_tokens_map.json. What only
  /// the class of a tokenizer knows, such as a bos_token that no file names, is not there.
  /// Errors: c10::ValueError that names the file and what it must hold, also where none holds a template.
  static ChatTemplate load(const std::string& directory);

  /// `messages`: a list of objects, mostly with `role` and `content`; numbers have at most 64 bits.
  /// Cost: the first rendering takes a fifth of a second, others of the same template under a millisecond.
  /// Errors: c10::ValueError for what is no such list, and for what the template refuses, with file and line;
  /// c10::Error where the module cannot be opened.
  std::string render(const OrderedJson& messages, const ChatOptions& options = {}) const;

  /// `bos_token`, `eos_token` and the others that the directory names, as templates see them.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  struct Source {
    std::string path, text;
  };

  void read_template_files();
  void read_template_fields(const nlohmann::json& config, const std::string& path);
  const Source& choose(bool has_tools) const;

  std::string directory_;
  std::map<std::string, Source> templates_;  // by name: `default`, `tool_use`, ...
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace shardwise::text
