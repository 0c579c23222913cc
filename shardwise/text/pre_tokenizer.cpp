#include "shardwise/text/pre_tokenizer.h"

#include <string_view>

#include "shardwise/text/metaspace.h"

namespace shardwise::text {
namespace {

using PreTokenizerStep = std::function<void(PreTokenizedString&)>;

// Source: openai/gpt-2 encoder.py.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Inserts `prefix(word, is_first)` before each word.
template <class Prefix>
void prefix_words(PreTokenizedString& words, const Prefix& prefix) {
  std::string text;
  text.reserve(words.text.size() + 1);
  for (Span& word : words.spans) {
    const std::string_view old = std::string_view(words.text).substr(word.begin, word.end - word.begin);
    const size_t begin = text.size();
    text.append(prefix(old, begin == 0)).append(old);
    word = {begin, text.size()};
  }
  words.text = std::move(text);
}

PreTokenizerStep prefix_space_step() {
  return [](PreTokenizedString& words) {
    prefix_words(words, [](std::string_view word, bool) { return word.starts_with(' ') ? "" : " "; });
  };
}

Behavior behavior_of(const JsonPart& json) {
  const std::string name = json.text("behavior");
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Removed") return Behavior::removed;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  throw_invalid(json.label("behavior"), "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous",
                name);
}

PreTokenizerStep split_step_of(const JsonPart& json) {
  json.allow({"type", "pattern", "behavior", "invert"});
  return split_step(read_pattern(json), behavior_of(json), json.flag("invert", false));
}

PreTokenizerStep digits_step(const JsonPart& json) {
  json.allow({"type", "individual_digits"});
  const bool individual = json.flag("individual_digits", false);
  const char* pattern = individual ? "\\p{N}" : "\\p{N}+";
  return split_step(regex_matcher(pattern, json.label("type")), Behavior::isolated, /*invert=*/false);
}

/// Replaces spaces by `replacement`.
void replace_spaces(PreTokenizedString& words, const std::string& replacement) {
  std::string text;
  text.reserve(words.text.size() + words.text.size() / 2);
  for (Span& word : words.spans) {
    const size_t begin = text.size();
    for (size_t i = word.begin; i < word.end; ++i) {
      if (words.text[i] == ' ') {
        text += replacement;
      } else {
        text += words.text[i];
      }
    }
    word = {begin, text.size()};
  }
  words.text = std::move(text);
}

PreTokenizerStep metaspace_step(const std::string& replacement, PrependScheme prepend_scheme) {
  return [=](PreTokenizedString& words) {
    // The first word starts the input only if no step removed text before it.
    const bool has_first = words.is_at_start && !words.spans.empty() && words.spans.front().begin == 0;
    replace_spaces(words, replacement);
    if (prepend_scheme == PrependScheme::never) return;
    prefix_words(words, [&](std::string_view word, bool is_first) {
      const bool prepends = prepend_scheme == PrependScheme::always || (is_first && has_first);
      return prepends && !word.starts_with(replacement) ? std::string_view(replacement) : std::string_view();
    });
  };
}

}  // namespace

void PreTokenizer::add_byte_level(const JsonPart& json) {
  json.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (json.flag("add_prefix_space", true)) steps_.push_back(prefix_space_step());
  if (json.flag("use_regex", true)) {
    steps_.push_back(split_step(regex_matcher(kGpt2Pattern, json.label("use_regex")), Behavior::isolated,
                                /*invert=*/false));
  }
  is_byte_level_ = true;
}

void PreTokenizer::add_metaspace(const Metaspace& metaspace) {
  steps_.push_back(metaspace_step(metaspace.replacement, metaspace.prepend_scheme));
  if (!metaspace.split) return;
  steps_.push_back(
      split_step(string_matcher(metaspace.replacement), Behavior::merged_with_next, /*invert=*/false));
}

void PreTokenizer::add(const JsonPart& json) {
  const std::string type = json.type();
  if (is_byte_level_) throw_invalid(json.label("type"), "omitted after ByteLevel", type);
  if (type == "Sequence") {
    json.allow({"type", "pretokenizers"});
    for (const JsonPart& part : json.parts("pretokenizers")) add(part);
  } else if (type == "ByteLevel") {
    add_byte_level(json);
  } else if (type == "Split") {
    steps_.push_back(split_step_of(json));
  } else if (type == "Digits") {
    steps_.push_back(digits_step(json));
  } else if (type == "Metaspace") {
    add_metaspace(read_metaspace(json));
  } else {
    throw_invalid(json.label("type"), "Sequence, ByteLevel, Split, Digits or Metaspace", type);
  }
}

}  // namespace shardwise::text
