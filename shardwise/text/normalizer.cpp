#include "shardwise/text/normalizer.h"

#include <c10/util/Exception.h>
#include <utf8proc.h>

#include <algorithm>

#include "shardwise/text/pattern.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

// The first byte of U+0300. NFC does not change text whose characters are all below it.
constexpr uint8_t kFirstComposingByte = 0xcc;

// U+11A7, a vowel that composes with no character and into which none decomposes. utf8proc 2.8 takes it for
// an empty final consonant: it removes it after a Hangul syllable. So the text before it and the text after
// it are normalized separately.
constexpr std::string_view kUncomposedVowel = "\u11a7";

constexpr utf8proc_ssize_t kMaxDecomposedCodePoints = 18;  // the maximum for one character in Unicode

struct Form {
  int options;
  uint8_t first_byte;  // text whose bytes are all smaller is already normalized
};

Form form_of(const std::string& type) {
  const int base = UTF8PROC_STABLE | (type.starts_with("NFK") ? UTF8PROC_COMPAT : 0);
  const bool composes = type.ends_with('C');
  return {base | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE),
          type == "NFC" ? kFirstComposingByte : uint8_t{0x80}};
}

utf8proc_ssize_t checked(utf8proc_ssize_t count) {
  TORCH_CHECK(count >= 0, "tokenizer: utf8proc must normalize text; got ", utf8proc_errmsg(count),
              " [SW0167]");
  return count;
}

/// Appends the decomposition of the character.
void append_decomposed(char32_t c, int options, std::vector<utf8proc_int32_t>& points) {
  const size_t begin = points.size();
  points.resize(begin + kMaxDecomposedCodePoints);
  int boundary = 0;  // unused output
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), points.data() + begin,
                              kMaxDecomposedCodePoints, static_cast<utf8proc_option_t>(options), &boundary);
  points.resize(begin + checked(count));
}

/// Sorts each run of combining marks by combining class. utf8proc's own sort is quadratic.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  const auto class_of = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  const auto is_mark = [&](utf8proc_int32_t c) { return class_of(c) != 0; };
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if(begin, points.end(), is_mark);
    const auto end = std::find_if_not(begin, points.end(), is_mark);
    std::stable_sort(begin, end, [&](auto a, auto b) { return class_of(a) < class_of(b); });
    begin = end;
  }
}

/// Appends the normalized `part`; `points` is a buffer that is reused.
void append_normalized_part(std::string_view part, int options, std::vector<utf8proc_int32_t>& points,
                            std::string& out) {
  points.clear();
  for (size_t at = 0; at < part.size(); at += utf8_unit(part, at).length) {
    append_decomposed(code_point(part, at), options, points);
  }
  order_marks(points);
  const auto count = static_cast<utf8proc_ssize_t>(points.size());
  const auto flags = static_cast<utf8proc_option_t>(options);
  points.push_back(0);  // reencode appends a terminating zero
  const utf8proc_ssize_t size = checked(utf8proc_reencode(points.data(), count, flags));
  out.append(reinterpret_cast<const char*>(points.data()), size);
}

void append_normalized(std::string_view run, int options, std::vector<utf8proc_int32_t>& points,
                       std::string& out) {
  for (size_t end; (end = run.find(kUncomposedVowel)) != std::string_view::npos;) {
    append_normalized_part(run.substr(0, end), options, points, out);
    out.append(kUncomposedVowel);
    run.remove_prefix(end + kUncomposedVowel.size());
  }
  append_normalized_part(run, options, points, out);
}

/// Normalizes each run of non-ASCII characters with the ASCII character before it, which may compose with it.
void normalize(std::string& text, const Form& form, std::vector<utf8proc_int32_t>& points) {
  const auto is_high = [&](size_t i) { return static_cast<uint8_t>(text[i]) >= 0x80; };
  const auto changes = [&](char c) { return static_cast<uint8_t>(c) >= form.first_byte; };
  if (std::none_of(text.begin(), text.end(), changes)) return;
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!is_high(at)) {
      ++at;
      continue;
    }
    const size_t begin = at > done ? at - 1 : at;
    while (at < text.size() && is_high(at)) ++at;
    if (std::none_of(text.begin() + begin, text.begin() + at, changes)) continue;
    out.append(text, done, begin - done);
    append_normalized(std::string_view(text).substr(begin, at - begin), form.options, points, out);
    done = at;
  }
  out.append(text, done);
  text = std::move(out);
}

TextStep form_step(const std::string& type) {
  return [form = form_of(type), points = std::vector<utf8proc_int32_t>()](
             std::string& text, const GrowthLimit&) mutable { normalize(text, form, points); };
}

void replace_matches(std::string& text, const Matcher& find, const std::string& content,
                     const GrowthLimit& limit) {
  auto match = find(text, 0);
  if (!match) return;
  std::string out;
  size_t done = 0;
  for (; match; match = find(text, done)) {
    out.append(text, done, match->begin - done).append(content);
    done = match->end;
    limit.check(out.size());
  }
  text = std::move(out.append(text, done));
}

}  // namespace

TextStep replacement_step(const JsonPart& json) {
  json.allow({"type", "pattern", "content"});
  return [find = read_pattern(json), content = json.text("content")](
             std::string& text, const GrowthLimit& limit) { replace_matches(text, find, content, limit); };
}

void Normalizer::add(const JsonPart& json) {
  const std::string type = json.type();
  if (type == "Sequence") {
    json.allow({"type", "normalizers"});
    for (const JsonPart& part : json.parts("normalizers")) add(part);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    json.allow({"type"});
    steps_.emplace_back(form_step(type));
  } else if (type == "Prepend") {
    json.allow({"type", "prepend"});
    steps_.emplace_back([prefix = json.text("prepend")](std::string& text, const GrowthLimit&) {
      if (!text.empty()) text.insert(0, prefix);
    });
  } else if (type == "Replace") {
    steps_.push_back(replacement_step(json));
  } else {
    throw_invalid(json.label("type"), "Sequence, NFC, NFD, NFKC, NFKD, Prepend or Replace", type);
  }
}

}  // namespace shardwise::text
