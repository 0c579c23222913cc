#include "shardwise/text/pre_tokenizer.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

using Step = std::function<void(Words&)>;
using Find = std::function<std::optional<Span>(std::string_view text, size_t from)>;
enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Source: openai/gpt-2 encoder.py.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
  Span span;
  bool is_match;
};

/// Matches and what lies between them, over all of `word`.
void find_parts(const Find& find, std::string_view text, Span word, std::vector<Part>& parts) {
  parts.clear();
  const std::string_view seen = text.substr(word.begin, word.end - word.begin);
  size_t done = 0;
  while (done < seen.size()) {
    const auto match = find(seen, done);
    if (!match) break;
    if (match->begin > done) parts.push_back({{word.begin + done, word.begin + match->begin}, false});
    parts.push_back({{word.begin + match->begin, word.begin + match->end}, true});
    done = match->end;
  }
  if (done < seen.size()) parts.push_back({{word.begin + done, word.end}, false});
}

/// Joins a match to its neighbour: each match that follows none. Going backwards joins to the next.
void append_merged(const std::vector<Part>& parts, bool backwards, std::vector<Span>& out) {
  const size_t first = out.size();
  bool was_match = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[backwards ? parts.size() - 1 - i : i];
    if (part.is_match && !was_match && out.size() > first) {
      (backwards ? out.back().begin : out.back().end) = backwards ? part.span.begin : part.span.end;
    } else {
      out.push_back(part.span);
    }
    was_match = part.is_match;
  }
  if (backwards) std::reverse(out.begin() + static_cast<ptrdiff_t>(first), out.end());
}

/// Joins neighbours of the same kind.
void append_contiguous(const std::vector<Part>& parts, std::vector<Span>& out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && parts[i].is_match == parts[i - 1].is_match) {
      out.back().end = parts[i].span.end;
    } else {
      out.push_back(parts[i].span);
    }
  }
}

void append_words(const std::vector<Part>& parts, Behavior behavior, std::vector<Span>& out) {
  switch (behavior) {
    case Behavior::kIsolated:
      for (const Part& part : parts) out.push_back(part.span);
      return;
    case Behavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.is_match) out.push_back(part.span);
      }
      return;
    case Behavior::kMergedWithPrevious:
      return append_merged(parts, /*backwards=*/false, out);
    case Behavior::kMergedWithNext:
      return append_merged(parts, /*backwards=*/true, out);
    case Behavior::kContiguous:
      return append_contiguous(parts, out);
  }
}

Step split_step(Find find, Behavior behavior, bool inverts) {
  return [=, parts = std::vector<Part>(), out = std::vector<Span>()](Words& words) mutable {
    out.clear();
    for (const Span word : words.spans) {
      find_parts(find, words.text, word, parts);
      if (inverts) {
        for (Part& part : parts) part.is_match = !part.is_match;
      }
      append_words(parts, behavior, out);
    }
    words.spans.swap(out);
  };
}

Find regex_find(const std::string& pattern, const std::string& where) {
  auto regex = std::make_shared<Regex>(pattern, where);  // shared, as functions are copied
  return [regex](std::string_view text, size_t from) { return regex->find(text, from); };
}

Find text_find(const std::string& wanted) {
  return [wanted](std::string_view text, size_t from) -> std::optional<Span> {
    const size_t at = text.find(wanted, from);
    if (at == std::string_view::npos) return std::nullopt;
    return Span{at, at + wanted.size()};
  };
}

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

Step prefix_space_step() {
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

Step split_step_of(const JsonPart& json) {
  json.allow({"type", "pattern", "behavior", "invert"});
  const JsonPart pattern = json.part("pattern");
  pattern.allow({"String", "Regex"});
  Find find;
  if (pattern.has("Regex")) {
    find = regex_find(pattern.text("Regex"), pattern.label("Regex"));
  } else {
    const std::string text = pattern.text("String");
    if (text.empty()) refuse(pattern.label("String"), "a text that is not empty", text);
    find = text_find(text);
  }
  return split_step(std::move(find), behavior_of(json), json.flag("invert", false));
}

Step digits_step(const JsonPart& json) {
  json.allow({"type", "individual_digits"});
  const bool individual = json.flag("individual_digits", false);
  const char* pattern = individual ? "\\p{N}" : "\\p{N}+";
  return split_step(regex_find(pattern, json.label("type")), Behavior::kIsolated, /*inverts=*/false);
}

enum class Prepends { kAlways, kFirst, kNever };

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

Step mark_step(const std::string& mark, Prepends prepends) {
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
    steps_.push_back(split_step(regex_find(kGpt2Pattern, json.label("use_regex")), Behavior::kIsolated,
                                /*inverts=*/false));
  }
  is_byte_level_ = true;
}

void PreTokenizer::add(const JsonPart& json) {
  const std::string type = json.type();
  if (is_byte_level_) refuse(json.label("type"), "left out after ByteLevel", type);
  if (type == "Sequence") {
    json.allow({"type", "pretokenizers"});
    const auto& parts = json.at("pretokenizers");
    if (!parts.is_array()) refuse(json.label("pretokenizers"), "a list", parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      add({parts[i], json.label("pretokenizers[" + std::to_string(i) + "].")});
    }
  } else if (type == "ByteLevel") {
    add_byte_level(json);
  } else if (type == "Split") {
    steps_.push_back(split_step_of(json));
  } else if (type == "Digits") {
    steps_.push_back(digits_step(json));
  } else if (type == "Metaspace") {
    json.allow({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
    const std::string mark = json.text("replacement");
    const bool is_one = !mark.empty() && utf8_unit(mark, 0).length == mark.size();
    if (!is_one) refuse(json.label("replacement"), "one character", mark);
    steps_.push_back(mark_step(mark, prepends_of(json)));
    if (json.flag("split", true)) {
      steps_.push_back(split_step(text_find(mark), Behavior::kMergedWithNext, /*inverts=*/false));
    }
  } else {
    refuse(json.label("type"), "Sequence, ByteLevel, Split, Digits or Metaspace", type);
  }
}

}  // namespace shardwise::text
