// The Metaspace of tokenizer.json, which cuts text as a pre-tokenizer and joins tokens as a decoder.
#pragma once
#include <string>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

/// Before which words a mark is put.
enum class Prepends { kAlways, kFirst, kNever };

struct Metaspace {
  std::string mark;  // one character, which stands for a blank
  Prepends prepends;
  bool splits;
};

/// Errors: c10::ValueError naming the field.
Metaspace read_metaspace(const JsonPart& json);

}  // namespace shardwise::text
