#include "shardwise/text/metaspace.h"

namespace shardwise::text {
namespace {

PrependScheme prepend_scheme_of(const JsonPart& json) {
  const std::string name = json.has("prepend_scheme") ? json.text("prepend_scheme") : "always";
  if (!json.flag("add_prefix_space", true)) {
    if (name != "never")
      throw_invalid(json.label("prepend_scheme"), "never if add_prefix_space is false", name);
    return PrependScheme::never;
  }
  if (name == "always") return PrependScheme::always;
  if (name == "first") return PrependScheme::first;
  if (name == "never") return PrependScheme::never;
  throw_invalid(json.label("prepend_scheme"), "always, first or never", name);
}

}  // namespace

size_t end_of_segment(std::string_view text, size_t begin) {
  for (size_t at = begin + 1; (at = text.find(kMetaspace, at)) != std::string_view::npos;
       at += kMetaspace.size()) {
    if (!text.substr(0, at).ends_with(kMetaspace)) return at;
  }
  return text.size();
}

Metaspace read_metaspace(const JsonPart& json) {
  json.allow({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  return {json.character("replacement"), prepend_scheme_of(json), json.flag("split", true)};
}

}  // namespace shardwise::text
