// `shardwise chat-template`: renders messages as the model's prompt.
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/input.h"
#include "shardwise/cli/ordered_json.h"
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
  flags.value("--model DIR", o.model, "model directory with tokenizer_config.json or chat_template.jinja");
  flags.value("--tools FILE", o.tools, "JSON list of schemas of the functions that the model may call");
  flags.on_off("--generation-prompt,!--no-generation-prompt", o.add_generation_prompt,
               "end with the header of the model's answer [on]");
  flags.value("--chat-template-kwargs JSON", o.variables,
              "JSON object of further template variables, such as {\"enable_thinking\": false}");
}

text::ChatOptions read_options(const ChatTemplateOptions& o) {
  text::ChatOptions options;
  options.add_generation_prompt = o.add_generation_prompt;
  if (o.tools)
    options.tools = std::make_shared<OrderedJson>(
        parse_ordered(base::read_text(*o.tools, base::kMaxJsonBytes), *o.tools));
  if (o.variables)
    options.variables =
        std::make_shared<OrderedJson>(parse_ordered(*o.variables, "chat-template: --chat-template-kwargs"));
  return options;
}

}  // namespace

int chat_template_command(const Call& call) {
  ChatTemplateOptions o;
  Flags flags("chat-template",
              "Renders a JSON list of messages from standard input with a model's chat template.");
  add_flags(flags, o);
  if (!flags.parse(call.arguments)) return 0;
  TORCH_CHECK_VALUE(o.model, "chat-template: --model must name a model directory; got none [SW0207]");
  const auto chat_template = text::ChatTemplate::load(*o.model);
  const text::ChatOptions options = read_options(o);
  print(chat_template.render(parse_ordered(read_input(base::kMaxJsonBytes), "standard input"), options));
  return 0;
}

}  // namespace shardwise::cli
