#include "shardwise/text/chat_template.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/text/chat_renderer.h"
#include "shardwise/text/model_directory.h"
#include "shardwise/text/special_tokens.h"

namespace shardwise::text {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";
constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;  // that of real models is a hundredth of it
constexpr size_t kMaxTextBytes = size_t{16} << 20;

/// Returns the entries of a directory; none if it does not exist.
std::vector<fs::path> optional_entries_of(const std::string& directory) {
  std::error_code error;
  if (fs::symlink_status(directory, error).type() == fs::file_type::not_found) return {};
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  TORCH_CHECK_VALUE(!error, "chat template: ", directory,
                    " must be a readable directory; got: ", error.message(), " [SW0210]");
  return entries;
}

/// Formats a value for an error message.
std::string shown(const OrderedJson& value) {
  return base::shown(json::parse(value.dump(-1, ' ', false, json::error_handler_t::replace)));
}

void check_objects(const char* what, const OrderedJson& list) {
  TORCH_CHECK_VALUE(list.is_array(), "chat template: ", what, " must be a list; got ", shown(list),
                    " [SW0218]");
  for (size_t i = 0; i < list.size(); ++i) {
    TORCH_CHECK_VALUE(list[i].is_object(), "chat template: ", what, "[", i, "] must be an object; got ",
                      shown(list[i]), " [SW0219]");
  }
}

void check_arguments(const OrderedJson& messages, const ChatOptions& options) {
  check_objects("messages", messages);
  TORCH_CHECK_VALUE(!messages.empty(), "chat template: messages must not be empty; got none [SW0220]");
  if (options.tools) check_objects("tools", *options.tools);
  TORCH_CHECK_VALUE(!options.variables || options.variables->is_object(),
                    "chat template: variables must be an object; got ", shown(*options.variables),
                    " [SW0221]");
}

/// Replaces newlines and other control characters, since a template's error may have several lines.
std::string on_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text;
}

}  // namespace

ChatTemplate ChatTemplate::load(const std::string& directory) {
  TORCH_CHECK_VALUE(base::is_directory(directory), "chat template: the model must be a directory; got ",
                    directory, " [SW0208]");
  const std::string config_path = directory + "/tokenizer_config.json";
  const json config = read_object(config_path);
  ChatTemplate result;
  result.directory_ = directory;
  result.read_template_files();
  if (result.templates_.empty()) result.read_template_fields(config, config_path);
  TORCH_CHECK_VALUE(
      !result.templates_.empty(), directory,
      ": must have a chat template in chat_template.jinja or tokenizer_config.json; got none [SW0209]");
  result.special_tokens_ = read_special_tokens(directory, config);
  return result;
}

void ChatTemplate::read_template_files() {
  const std::string path = directory_ + "/chat_template.jinja";
  if (base::exists(path)) templates_[kDefault] = {path, base::read_text(path, kMaxTemplateBytes)};
  for (const fs::path& further : optional_entries_of(directory_ + "/additional_chat_templates")) {
    if (further.extension() == ".jinja") {
      templates_[further.stem()] = {further, base::read_text(further, kMaxTemplateBytes)};
    }
  }
}

void ChatTemplate::read_template_fields(const json& config, const std::string& path) {
  const auto field = config.find("chat_template");
  if (field == config.end() || field->is_null()) return;
  const auto add = [&](const std::string& name, const json& text) {
    TORCH_CHECK_VALUE(text.is_string(), path, ": chat_template ", base::shortened(name),
                      " must be a string; got ", base::shown(text), " [SW0212]");
    templates_[name] = {path, text.get<std::string>()};
    TORCH_CHECK_VALUE(std::ssize(templates_[name].text) <= kMaxTemplateBytes, path,
                      ": a chat template must have at most ", kMaxTemplateBytes, " bytes; got ",
                      templates_[name].text.size(), " [SW0546]");
  };
  if (field->is_object()) {
    for (const auto& [name, text] : field->items()) add(name, text);
  } else if (field->is_array()) {
    for (const json& entry : *field) {
      const bool is_named = entry.is_object() && entry.contains("name") && entry["name"].is_string();
      TORCH_CHECK_VALUE(is_named && entry.contains("template"), path,
                        ": chat_template must be a list of objects with name and template; got ",
                        base::shown(entry), " [SW0213]");
      add(entry["name"], entry["template"]);
    }
  } else {
    add(kDefault, *field);
  }
}

const ChatTemplate::Source& ChatTemplate::choose(bool has_tools) const {
  const auto for_tools = templates_.find(kToolUse);
  if (has_tools && for_tools != templates_.end()) return for_tools->second;
  const auto found = templates_.find(kDefault);
  TORCH_CHECK_VALUE(found != templates_.end(), directory_, ": a chat template must be named default; got ",
                    base::shown(templates_.begin()->first), " [SW0211]");
  return found->second;
}

std::string ChatTemplate::render(const OrderedJson& messages, const ChatOptions& options) const {
  check_arguments(messages, options);
  const Source& source = choose(options.tools != nullptr);
  OrderedJson variables = special_tokens_;
  if (options.variables) variables.update(*options.variables);
  const json answer = render_request({{"template", source.text},
                                      {"messages", messages},
                                      {"tools", options.tools ? *options.tools : OrderedJson()},
                                      {"add_generation_prompt", options.add_generation_prompt},
                                      {"variables", std::move(variables)}});
  TORCH_CHECK_VALUE(!answer.contains("limit"), source.path,
                    ": the chat template must render these messages in ", RenderLimits().seconds, " s and ",
                    RenderLimits().bytes >> 20, " MiB of memory; it needs more ", answer.value("limit", ""),
                    " [SW0547]");
  TORCH_CHECK_VALUE(
      answer.contains("text"), source.path, ": the chat template must accept these messages; got ",
      base::shortened(on_one_line(answer.value("error", "")), base::kMaxReasonBytes), " [SW0216]");
  std::string text = answer["text"];
  TORCH_CHECK_VALUE(text.size() <= kMaxTextBytes, source.path,
                    ": the chat template must render these messages as at most ", kMaxTextBytes,
                    " bytes; got ", text.size(), " [SW0548]");
  return text;
}

}  // namespace shardwise::text
