// The Metaspace component of tokenizer.json, which is a pre-tokenizer and a decoder.
#pragma once
#include <string>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

/// Which words get a leading metaspace.
enum class PrependScheme { always, first, never };

/// The options of a Metaspace component.
struct Metaspace {
  std::string replacement;  // one character, which replaces a space
  PrependScheme prepend_scheme;
  bool split;
};

/// Reads a Metaspace component. Throws c10::ValueError naming the invalid field.
Metaspace read_metaspace(const JsonPart& json);

}  // namespace shardwise::text
