// `shardwise chat-template`: messages as the text that a model is given.
#include <c10/util/Exception.h>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/input.h"
#include "shardwise/cli/output.h"
#include "shardwise/text/chat_template.h"

namespace shardwise::cli {
namespace {

using text::OrderedJson;

struct ChatTemplateOptions {
  std::optional<std::string> model, tools, variables;
  bool add_generation_prompt = true;
};

void add_flags(Flags& flags, ChatTemplateOptions& o) {
  flags.value("--model DIR", o.model, "folder with tokenizer_config.json or chat_template.jinja");
  flags.value("--tools FILE", o.tools, "JSON schemas of functions that the model may call, a list");
  flags.on_off("--generation-prompt,!--no-generation-prompt", o.add_generation_prompt,
               "end where the model's answer begins [on]");
  flags.value("--chat-template-kwargs JSON", o.variables,
              "object with further variables of the template, such as enable_thinking");
}

/// Finds a number that is read as a float only because it has more than 64 bits.
class WholeNumbers : public nlohmann::json_sax<OrderedJson> {
 public:
  explicit WholeNumbers(std::string where) : where_(std::move(where)) {}

  bool number_float(double, const std::string& text) override {
    const bool is_whole = text.find_first_of(".eE") == std::string::npos;
    TORCH_CHECK_VALUE(!is_whole, where_, ": whole numbers must have at most 64 bits; got ", text);
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(OrderedJson::binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  std::string where_;
};

/// The value with its objects in the order that they are written in.
OrderedJson parse_ordered(const std::string& text, const std::string& where) {
  base::parse_json(text, where);  // for its errors
  WholeNumbers numbers(where);
  OrderedJson::sax_parse(text, &numbers);
  return OrderedJson::parse(text);
}

text::ChatOptions read_options(const ChatTemplateOptions& o) {
  text::ChatOptions options{.add_generation_prompt = o.add_generation_prompt};
  if (o.tools) options.tools = parse_ordered(base::read_text(*o.tools), *o.tools);
  if (o.variables) options.variables = parse_ordered(*o.variables, "chat-template: --chat-template-kwargs");
  return options;
}

}  // namespace

int chat_template_command(const Call& call) {
  ChatTemplateOptions o;
  Flags flags(
      "chat-template",
      "Prints a conversation, the JSON list of messages on standard input, as its model is given it.");
  add_flags(flags, o);
  if (!flags.parse(call.arguments)) return 0;
  TORCH_CHECK_VALUE(o.model, "chat-template: --model names the folder of a model; got none");
  const auto chat_template = text::ChatTemplate::load(*o.model);
  const text::ChatOptions options = read_options(o);
  print(chat_template.render(parse_ordered(read_input(), "standard input"), options));
  return 0;
}

}  // namespace shardwise::cli
