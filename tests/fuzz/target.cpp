#include "tests/fuzz/target.h"

#include <regex>

namespace shardwise::fuzz {
namespace {

constexpr size_t kLongestMessage = 1000;

}  // namespace

void check_rejection(const c10::Error& error) {
  static const std::regex kCode(R"(.*\[SW[0-9]{4}\])");  // . is no newline
  const std::string text = error.what_without_backtrace();
  if (text.size() > kLongestMessage || !std::regex_match(text, kCode))
    throw std::logic_error("rejected an input with an error other than one short line with a code: " + text);
}

std::vector<Target> targets() {
  std::vector<Target> all;
  for (const auto group :
       {config_targets, tensor_targets, weight_targets, text_targets, command_targets, rendezvous_targets}) {
    for (Target& target : group()) all.push_back(std::move(target));
  }
  return all;
}

Target target(const std::string& name) {
  std::string known;
  for (Target& target : targets()) {
    if (target.name == name) return target;
    known += " " + target.name;
  }
  throw std::invalid_argument("the target must be one of" + known + "; got '" + name + "'");
}

}  // namespace shardwise::fuzz
