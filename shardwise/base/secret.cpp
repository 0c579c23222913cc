#include "shardwise/base/secret.h"

#include <fmt/format.h>

#include <charconv>

#include "shardwise/base/random.h"

namespace shardwise::base {
namespace {

constexpr size_t kDigits = 16;  // of a word

std::optional<uint64_t> word_of(std::string_view digits) {
  uint64_t word = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), word, 16);
  const bool is_number = error == std::errc() && end == digits.end();
  return is_number ? std::optional(word) : std::nullopt;
}

}  // namespace

Secret Secret::random() {
  return {{random_bits(), random_bits()}};
}

std::optional<Secret> Secret::parse(std::string_view text) {
  if (text.size() != 2 * kDigits) return std::nullopt;
  const auto high = word_of(text.substr(0, kDigits)), low = word_of(text.substr(kDigits));
  if (!high || !low) return std::nullopt;
  return Secret{{*high, *low}};
}

std::string Secret::text() const {
  return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

}  // namespace shardwise::base
