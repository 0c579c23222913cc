#define PCRE2_CODE_UNIT_WIDTH 8
#include "shardwise/text/regex.h"

#include <c10/util/Exception.h>
#include <pcre2.h>

#include <array>
#include <cctype>

namespace shardwise::text {
namespace {

// Unicode's White_Space; PCRE2's own \s has U+180E too.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";
constexpr std::string_view kWords = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
// Groups that mean the same in both.
constexpr std::array<std::string_view, 7> kGroups{"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"};
constexpr uint32_t kMatchLimit = 1000000000;
constexpr size_t kMostStackBytes = size_t{64} << 20;

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        escape();
      } else if (is_in_set_) {
        in_set();
      } else {
        outside_set();
      }
    }
    return std::move(out_);
  }

 private:
  bool goes_on_with(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  void take(size_t length) {
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  [[noreturn]] void refuse(size_t length) const {
    TORCH_CHECK_VALUE(false, where_, " must be a pattern of characters, classes, groups and repeats; got ",
                      pattern_.substr(at_, length), " at byte ", at_);
  }

  void outside_set() {
    const char c = pattern_[at_];
    if (c == '^' || c == '$' || goes_on_with("{,")) refuse(1);
    if (c == '(' && goes_on_with("(?")) return open_group();
    if (c == '}' && goes_on_with("}+")) refuse(2);  // possessive in PCRE2 alone
    if (c == '[') {
      is_in_set_ = true;
      take(goes_on_with("[^") ? 2 : 1);
      if (goes_on_with("]")) refuse(1);
      return;
    }
    take(1);
  }

  void open_group() {
    take(1);
    for (const std::string_view group : kGroups) {
      if (goes_on_with(group)) return take(group.size());
    }
    refuse(3);
  }

  void in_set() {
    if (pattern_[at_] == '[' || goes_on_with("&&")) refuse(2);  // sets within sets in Oniguruma
    if (pattern_[at_] == ']') is_in_set_ = false;
    take(1);
  }

  /// What stands for a class of characters: as part of a set, or a set of its own.
  void put(std::string_view characters, bool is_negated) {
    if (is_in_set_ && is_negated) refuse(2);
    if (!is_in_set_) out_ += is_negated ? "[^" : "[";
    out_ += characters;
    if (!is_in_set_) out_ += "]";
    at_ += 2;
  }

  void escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (c == 's' || c == 'S') return put(kSpaces, c == 'S');
    if (c == 'w' || c == 'W') return put(kWords, c == 'W');
    if (c == 'd' || c == 'D') return put("\\p{Nd}", c == 'D');
    if (c == 'u' && at_ + 6 <= pattern_.size()) {
      out_ += "\\x{" + std::string(pattern_.substr(at_ + 2, 4)) + "}";
      at_ += 6;
      return;
    }
    const bool means_the_same = c == 'r' || c == 'n' || c == 't' || c == 'f' || goes_on_with("\\x{") ||
                                goes_on_with("\\p{") || goes_on_with("\\P{");
    if (!means_the_same && (c == '\0' || std::isalnum(static_cast<unsigned char>(c)))) refuse(2);
    take(2);
    if (out_.ends_with("\\p") || out_.ends_with("\\P") || out_.ends_with("\\x")) {
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) refuse(1);
      take(end + 1 - at_);
    }
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
  bool is_in_set_ = false;
};

std::string message_of(int error) {
  std::array<unsigned char, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

std::string to_pcre2(const std::string& pattern, const std::string& where) {
  return Translation(pattern, where).run();
}

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  bool has_jit = false;

  ~Compiled() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
    pcre2_code_free(code);
  }
};

Regex::Regex(const std::string& pattern, const std::string& where) : compiled_(std::make_unique<Compiled>()) {
  const std::string text = to_pcre2(pattern, where);
  int error = 0;
  size_t at = 0;
  const auto options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> rules(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(rules.get(), PCRE2_NEWLINE_LF);
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error,
                                  &at, rules.get());
  TORCH_CHECK_VALUE(compiled_->code, where, " must be a pattern that PCRE2 compiles; got ", message_of(error),
                    " in ", pattern);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled_->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  TORCH_CHECK_VALUE(matches_empty == 0, where, " must not match the empty text; got ", pattern);
  compiled_->has_jit = pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
  compiled_->match = pcre2_match_data_create(1, nullptr);
  compiled_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(compiled_->context, kMatchLimit);
  compiled_->stack = pcre2_jit_stack_create(32 * 1024, kMostStackBytes, nullptr);
  if (compiled_->has_jit) pcre2_jit_stack_assign(compiled_->context, nullptr, compiled_->stack);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

std::optional<Span> Regex::find(std::string_view text, size_t from) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto& c = *compiled_;
  const int found =
      c.has_jit ? pcre2_jit_match(c.code, subject, text.size(), from, 0, c.match, c.context)
                : pcre2_match(c.code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, c.match, c.context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  TORCH_CHECK_VALUE(found >= 0, "tokenizer: the pattern must match in bounded time; got ", message_of(found));
  const size_t* ends = pcre2_get_ovector_pointer(c.match);
  return Span{ends[0], ends[1]};
}

}  // namespace shardwise::text
