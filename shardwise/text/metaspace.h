// The metaspace, by which tokenizers spell a space, and the Metaspace component of tokenizer.json, which is a
// pre-tokenizer and a decoder.
#pragma once
#include <string>
#include <string_view>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581

/// Returns the end of the segment that starts at `begin`: the next metaspace that does not follow another.
size_t end_of_segment(std::string_view text, size_t begin);

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
