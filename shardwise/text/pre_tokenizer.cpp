#include "shardwise/text/pre_tokenizer.h"

#include <string_view>

#include "shardwise/text/metaspace.h"

namespace shardwise::text {
namespace {

using WordsStep = std::function<void(Words&)>;

// Source: openai/gpt-2 encoder.py.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Puts `prefix(word, is_first)` before each word.
template <class Prefix>
void prefix_words(Words& words, const Prefix& prefix) {
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

WordsStep prefix_space_step() {
  return [](Words& words) {
    prefix_words(words, [](std::string_view word, bool) { return word.starts_with(' ') ? "" : " "; });
  };
}

Behavior behavior_of(const JsonPart& json) {
  const std::string name = json.text("behavior");
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  refuse(json.label("behavior"), "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", name);
}

WordsStep split_step_of(const JsonPart& json) {
  json.allow({"type", "pattern", "behavior", "invert"});
  return split_step(read_pattern(json), behavior_of(json), json.flag("invert", false));
}

WordsStep digits_step(const JsonPart& json) {
  json.allow({"type", "individual_digits"});
  const bool individual = json.flag("individual_digits", false);
  const char* pattern = individual ? "\\p{N}" : "\\p{N}+";
  return split_step(find_regex(pattern, json.label("type")), Behavior::kIsolated, /*inverts=*/false);
}

/// Blanks become `mark`, which begins words.
void mark_blanks(Words& words, const std::string& mark) {
  std::string text;
  text.reserve(words.text.size() + words.text.size() / 2);
  for (Span& word : words.spans) {
    const size_t begin = text.size();
    for (size_t i = word.begin; i < word.end; ++i) {
      if (words.text[i] == ' ') {
        text += mark;
      } else {
        text += words.text[i];
      }
    }
    word = {begin, text.size()};
  }
  words.text = std::move(text);
}

WordsStep mark_step(const std::string& mark, Prepends prepends) {
  return [=](Words& words) {
    // The first word is the input's first only where no step has cut text off before it.
    const bool has_first = words.is_at_start && !words.spans.empty() && words.spans.front().begin == 0;
    mark_blanks(words, mark);
    if (prepends == Prepends::kNever) return;
    prefix_words(words, [&](std::string_view word, bool is_first) {
      const bool wanted = prepends == Prepends::kAlways || (is_first && has_first);
      return wanted && !word.starts_with(mark) ? std::string_view(mark) : std::string_view();
    });
  };
}

}  // namespace

void PreTokenizer::add_byte_level(const JsonPart& json) {
  json.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (json.flag("add_prefix_space", true)) steps_.push_back(prefix_space_step());
  if (json.flag("use_regex", true)) {
    steps_.push_back(split_step(find_regex(kGpt2Pattern, json.label("use_regex")), Behavior::kIsolated,
                                /*inverts=*/false));
  }
  is_byte_level_ = true;
}

void PreTokenizer::add_metaspace(const Metaspace& metaspace) {
  steps_.push_back(mark_step(metaspace.mark, metaspace.prepends));
  if (!metaspace.splits) return;
  steps_.push_back(split_step(find_text(metaspace.mark), Behavior::kMergedWithNext, /*inverts=*/false));
}

void PreTokenizer::add(const JsonPart& json) {
  const std::string type = json.type();
  if (is_byte_level_) refuse(json.label("type"), "left out after ByteLevel", type);
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
    refuse(json.label("type"), "Sequence, ByteLevel, Split, Digits or Metaspace", type);
  }
}

}  // namespace shardwise::text
