#include "shardwise/text/metaspace.h"

namespace shardwise::text {
namespace {

Prepends prepends_of(const JsonPart& json) {
  const std::string name = json.has("prepend_scheme") ? json.text("prepend_scheme") : "always";
  if (!json.flag("add_prefix_space", true)) {
    if (name != "never") refuse(json.label("prepend_scheme"), "never without add_prefix_space", name);
    return Prepends::kNever;
  }
  if (name == "always") return Prepends::kAlways;
  if (name == "first") return Prepends::kFirst;
  if (name == "never") return Prepends::kNever;
  refuse(json.label("prepend_scheme"), "always, first or never", name);
}

}  // namespace

Metaspace read_metaspace(const JsonPart& json) {
  json.allow({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  return {json.character("replacement"), prepends_of(json), json.flag("split", true)};
}

}  // namespace shardwise::text
