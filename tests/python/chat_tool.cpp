// Renders many chats in one process, for the comparison with transformers.
//
//   chat_tool < REQUESTS
//
// A request is a line with a JSON object: `directory`, `messages`, `add_generation_prompt`, `variables`, and
// optionally `tools`. The answer is a line with `text` or `error`.
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/text/chat_template.h"

namespace shardwise::testing {
namespace {

using text::OrderedJson;

std::string render(const OrderedJson& request) {
  text::ChatOptions options{.add_generation_prompt = request["add_generation_prompt"].get<bool>(),
                            .tools = {},
                            .variables = std::make_shared<OrderedJson>(request["variables"])};
  if (request.contains("tools")) options.tools = std::make_shared<OrderedJson>(request["tools"]);
  return text::ChatTemplate::load(request["directory"]).render(request["messages"], options);
}

OrderedJson answer(const std::string& line) {
  try {
    return {{"text", render(OrderedJson::parse(line))}};
  } catch (const std::exception& error) {
    return {{"error", base::one_line(error)}};
  }
}

}  // namespace
}  // namespace shardwise::testing

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::puts(shardwise::testing::answer(line).dump().c_str());
  }
}
