#include "shardwise/text/normalizer.h"

#include <c10/util/Exception.h>
#include <utf8proc.h>

#include <algorithm>

#include "shardwise/text/pattern.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

using Step = std::function<void(std::string&)>;

// No character below U+0300, whose first byte this is, changes in NFC, beside others below it.
constexpr uint8_t kFirstThatComposes = 0xcc;

struct Form {
  int options;
  uint8_t first_byte;  // text of smaller bytes is in this form
};

Form form_of(const std::string& type) {
  const int base = UTF8PROC_STABLE | (type.starts_with("NFK") ? UTF8PROC_COMPAT : 0);
  const bool composes = type.ends_with('C');
  return {base | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE),
          type == "NFC" ? kFirstThatComposes : uint8_t{0x80}};
}

/// Appends `run` in the form; `points` is room that is used again.
void append_normalized(std::string_view run, int options, std::vector<utf8proc_int32_t>& points,
                       std::string& out) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(run.data());
  const auto length = static_cast<utf8proc_ssize_t>(run.size());
  const auto flags = static_cast<utf8proc_option_t>(options);
  const auto decompose = [&] {
    return utf8proc_decompose(bytes, length, points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                              flags);
  };
  points.resize(std::max(points.size(), run.size() + 1));
  utf8proc_ssize_t count = decompose();
  if (count >= static_cast<utf8proc_ssize_t>(points.size())) {
    points.resize(count + 1);
    count = decompose();
  }
  TORCH_CHECK(count >= 0, "tokenizer: utf8proc must normalize text; got ", utf8proc_errmsg(count));
  const utf8proc_ssize_t size = utf8proc_reencode(points.data(), count, flags);
  TORCH_CHECK(size >= 0, "tokenizer: utf8proc must normalize text; got ", utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(points.data()), size);
}

/// Runs of characters beyond ASCII, each with the ASCII character before it, which may compose with them.
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

Step form_step(const std::string& type) {
  return [form = form_of(type), points = std::vector<utf8proc_int32_t>()](std::string& text) mutable {
    normalize(text, form, points);
  };
}

void replace_matches(std::string& text, const Find& find, const std::string& content) {
  auto match = find(text, 0);
  if (!match) return;
  std::string out;
  size_t done = 0;
  for (; match; match = find(text, done)) {
    out.append(text, done, match->begin - done).append(content);
    done = match->end;
  }
  text = std::move(out.append(text, done));
}

}  // namespace

Step replacement_step(const JsonPart& json) {
  json.allow({"type", "pattern", "content"});
  return [find = read_pattern(json), content = json.text("content")](std::string& text) {
    replace_matches(text, find, content);
  };
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
    steps_.emplace_back([prefix = json.text("prepend")](std::string& text) {
      if (!text.empty()) text.insert(0, prefix);
    });
  } else if (type == "Replace") {
    steps_.push_back(replacement_step(json));
  } else {
    refuse(json.label("type"), "Sequence, NFC, NFD, NFKC, NFKD, Prepend or Replace", type);
  }
}

}  // namespace shardwise::text
