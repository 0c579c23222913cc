#define PCRE2_CODE_UNIT_WIDTH 8
#include "shardwise/text/regex.h"

#include <c10/util/Exception.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "shardwise/base/json.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

// Unicode's White_Space; PCRE2's \s also matches U+180E.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";
constexpr std::string_view kWordsInSet = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside a set, Oniguruma's \w also matches Latin-1's superscripts and fractions.
constexpr std::string_view kWords = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
// Groups with equal meaning in both libraries.
constexpr std::array<std::string_view, 7> kGroups{"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"};
constexpr std::string_view kIgnoresCase = "?i:";
// Properties with equal meaning in both libraries, separated by spaces. All other names are scripts.
constexpr std::string_view kProperties =
    " C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp "
    "Zs "
    "Alphabetic Emoji Extended_Pictographic Hex_Digit Ideographic Join_Control Lowercase Uppercase "
    "White_Space ";
// Sequences that Oniguruma's case folding equates with one character, such as ss with U+00DF.
constexpr std::array<std::string_view, 5> kFolded{"ss", "st", "ff", "fi", "fl"};
// Each limits one match: a second of backtracking, and the memory of its stack.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kMaxStackBytes = size_t{64} << 20;

/// Translates a pattern in one pass. Case folding maps one character to several in Oniguruma but to one in
/// PCRE2, so case-insensitive groups are restricted to ASCII without the pairs of kFolded.
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
  bool starts_with(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool ignores_case() const { return !groups_.empty() && groups_.back(); }

  void copy(size_t length) {
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  [[noreturn]] void reject(size_t length) const {
    TORCH_CHECK_VALUE(false, where_, " must use only characters, classes, groups and repeats; got ",
                      base::shown(std::string(pattern_.substr(at_, length))), " at byte ", at_, " [SW0160]");
  }

  void outside_set() {
    const char c = pattern_[at_];
    if (c == '^' || c == '$' || starts_with("{,")) reject(1);
    if (c == '}' && starts_with("}+")) reject(2);  // possessive in PCRE2 only
    if (starts_with("}?") && follows_count()) reject(2);
    if (ignores_case()) check_folding();
    if (c == '[') return open_set();
    if (c == '(') return open_group();
    if (c == ')' && !groups_.empty()) groups_.pop_back();
    copy(1);
  }

  /// Returns whether `}` ends a count {n}: {n}? is optional in Oniguruma, lazy in PCRE2.
  bool follows_count() const {
    const std::string_view before = pattern_.substr(0, at_);
    const size_t last = before.find_last_not_of("0123456789");
    return last != std::string_view::npos && before[last] == '{';
  }

  /// Rejects characters whose folding is affected. Brackets do not separate characters, and a counted repeat
  /// puts a character next to itself.
  void check_folding() {
    const char c =
        pattern_[at_] == '{' ? before_ : static_cast<char>(std::tolower(static_cast<uint8_t>(pattern_[at_])));
    if (static_cast<uint8_t>(c) >= 0x80) reject(utf8_unit(pattern_, at_).length);
    const std::string pair{before_, c};
    if (std::find(kFolded.begin(), kFolded.end(), pair) != kFolded.end()) reject(1);
    const bool is_bracket = c == ')' || starts_with("(?:") || (c == '(' && !starts_with("(?"));
    if (!is_bracket) before_ = c;
  }

  void open_set() {
    is_in_set_ = true;
    if (ignores_case() && starts_with("[^")) reject(2);
    copy(starts_with("[^") ? 2 : 1);
    set_begin_ = out_.size();
    if (starts_with("]")) reject(1);
  }

  void open_group() {
    const bool was_ignored = ignores_case();
    if (starts_with("(*")) reject(2);  // a verb or an option of PCRE2, such as (*ACCEPT)
    copy(1);
    if (!starts_with("?")) return groups_.push_back(was_ignored);
    for (const std::string_view group : kGroups) {
      if (!starts_with(group)) continue;
      groups_.push_back(was_ignored || group == kIgnoresCase);
      if (group == kIgnoresCase || !was_ignored) before_ = '\0';
      return copy(group.size());
    }
    reject(3);
  }

  void in_set() {
    const char c = pattern_[at_];
    if (c == '[' || starts_with("&&")) reject(2);  // nested sets in Oniguruma
    if (c == '-' && out_.size() == class_end_ && !starts_with("-]")) reject(1);
    if (ignores_case() && static_cast<uint8_t>(c) >= 0x80) reject(utf8_unit(pattern_, at_).length);
    if (c == ']') is_in_set_ = false;
    copy(1);
  }

  /// Rejects a range that ends in a character class.
  void begin_class() {
    const bool ends_range =
        is_in_set_ && out_.size() > set_begin_ + 1 && out_.ends_with('-') && !out_.ends_with("\\-");
    if (ends_range) reject(2);
  }

  /// Writes a character class, as part of the current set or as a new set.
  void put(std::string_view characters, bool is_negated) {
    if (is_in_set_ && is_negated) reject(2);
    begin_class();
    if (!is_in_set_) out_ += is_negated ? "[^" : "[";
    out_ += characters;
    if (!is_in_set_) out_ += "]";
    class_end_ = out_.size();
    at_ += 2;
  }

  /// Translates \p{Name}. PCRE2 reads the bare name of a script as Script_Extensions, so scripts get the
  /// prefix sc:.
  void put_property() {
    const size_t begin = at_ + 3, end = pattern_.find('}', begin);
    if (end == std::string_view::npos) reject(3);
    const std::string_view name = pattern_.substr(begin, end - begin);
    const bool is_name =
        std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!is_name) reject(end + 1 - at_);
    begin_class();
    copy(3);
    if (kProperties.find(" " + std::string(name) + " ") == std::string_view::npos) out_ += "sc:";
    copy(name.size() + 1);
    class_end_ = out_.size();
  }

  /// Translates \uHHHH.
  void put_code_point() {
    const std::string_view digits = pattern_.substr(at_ + 2, 4);
    const bool is_number =
        digits.size() == 4 &&
        std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c); });
    if (!is_number) reject(2);
    out_ += "\\x{" + std::string(digits) + "}";
    at_ += 6;
  }

  void escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    const bool may_fold = std::string_view("SwWDxupP").find(c) != std::string_view::npos;
    if (ignores_case() && may_fold) reject(2);
    before_ = '\0';
    if (c == 's' || c == 'S') return put(kSpaces, c == 'S');
    if (c == 'w' || c == 'W') return put(is_in_set_ ? kWordsInSet : kWords, c == 'W');
    if (c == 'd' || c == 'D') return put("\\p{Nd}", c == 'D');
    if (starts_with("\\p{") || starts_with("\\P{")) return put_property();
    if (c == 'u') return put_code_point();
    const bool is_number = starts_with("\\x{");
    const bool means_the_same = c == 'r' || c == 'n' || c == 't' || c == 'f' || is_number;
    if (!means_the_same && (c == '\0' || std::isalnum(static_cast<unsigned char>(c)))) reject(2);
    const size_t end = is_number ? pattern_.find('}', at_) : at_ + 1;
    if (end == std::string_view::npos) reject(3);
    copy(end + 1 - at_);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
  bool is_in_set_ = false;
  size_t set_begin_ = 0, class_end_ = std::string::npos;  // in out_
  std::vector<bool> groups_;                              // whether each open group ignores case
  char before_ = '\0';  // the last character of a case-insensitive group, in lower case
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

Regex::Regex(const std::string& pattern, const std::string& where, Matcher matcher)
    : compiled_(std::make_unique<Compiled>()) {
  const std::string text = to_pcre2(pattern, where);
  int error = 0;
  size_t at = 0;
  const auto options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> rules(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(rules.get(), PCRE2_NEWLINE_LF);
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error,
                                  &at, rules.get());
  TORCH_CHECK_VALUE(compiled_->code, where, " must be accepted by PCRE2; got ", message_of(error), " in ",
                    base::shown(pattern), " [SW0161]");
  uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled_->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  TORCH_CHECK_VALUE(matches_empty == 0, where, " must not match the empty string; got ", base::shown(pattern),
                    " [SW0162]");
  compiled_->has_jit = matcher == Matcher::machine_code_if_possible &&
                       pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
  compiled_->match = pcre2_match_data_create(1, nullptr);
  compiled_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(compiled_->context, kMatchLimit);
  pcre2_set_heap_limit(compiled_->context, kMaxStackBytes >> 10);  // in KiB; without the JIT compiler
  compiled_->stack = pcre2_jit_stack_create(size_t{32} << 10, kMaxStackBytes, nullptr);
  if (compiled_->has_jit) pcre2_jit_stack_assign(compiled_->context, nullptr, compiled_->stack);
}

Regex::~Regex() = default;

std::optional<Span> Regex::find(std::string_view text, size_t from) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto& c = *compiled_;
  const int found =
      c.has_jit ? pcre2_jit_match(c.code, subject, text.size(), from, 0, c.match, c.context)
                : pcre2_match(c.code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, c.match, c.context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  TORCH_CHECK_VALUE(found >= 0, "tokenizer: the pattern must match within PCRE2's match limit; got ",
                    message_of(found), " [SW0166]");
  const size_t* ends = pcre2_get_ovector_pointer(c.match);
  return Span{ends[0], ends[1]};
}

}  // namespace shardwise::text
