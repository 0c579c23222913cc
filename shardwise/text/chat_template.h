// A model's chat template: formats the messages of a conversation as the text that the model was trained on.
//
// This file reads the model directory and selects the template. A module in jinja/ renders it, which is
// loaded at the first rendering (docs/adr/0011).
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwise::text {

/// JSON values whose objects keep the order of their fields, because templates print them.
using OrderedJson = nlohmann::ordered_json;

/// The arguments of a chat template besides the messages.
struct ChatOptions {
  bool add_generation_prompt = true;
  /// A list of JSON schemas of functions that the model may call. An empty list differs from null.
  std::shared_ptr<const OrderedJson> tools;
  /// An object with additional template variables, such as Qwen3's enable_thinking; null: none.
  std::shared_ptr<const OrderedJson> variables;
};

/// A chat template with the output of transformers' `apply_chat_template(tokenize=False)`, byte for byte.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja and additional_chat_templates/*.jinja, or else the chat_template of
  /// tokenizer_config.json, and the special tokens of tokenizer_config.json and the older
  /// special_tokens_map.json. Special tokens that only a transformers tokenizer class defines are missing.
  /// Throws c10::ValueError naming the file and its rule, also if the directory has no template.
  static ChatTemplate load(const std::string& directory);

  /// Renders `messages`, a list of objects, usually with `role` and `content`; numbers have at most 64 bits.
  /// Cost: 0.2 s for the first rendering, under 1 ms for further ones of the same template.
  /// Throws c10::ValueError if `messages` is not such a list or if the template raises an error (with file
  /// and line), and c10::Error if the module cannot be loaded.
  std::string render(const OrderedJson& messages, const ChatOptions& options = {}) const;

  /// The directory's special tokens (`bos_token`, `eos_token`, ...), which are variables of the template.
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
