#include "shardwise/cli/continued_text.h"

namespace shardwise::cli {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

ContinuedText::ContinuedText(const text::Tokenizer& tokenizer, const std::vector<std::string>& stops)
    : vocab_size_(tokenizer.vocab_size()),
      decoder_(tokenizer.stream(text::Specials::kWithout)),
      stops_(stops) {}

std::string ContinuedText::push(int64_t id) {
  const bool is_known = id < vocab_size_;
  unknown_ += is_known ? 0 : 1;
  return added(stops_.push(is_known ? decoder_->push(id) : decoder_->finish() + kReplacement));
}

std::string ContinuedText::finish() {
  const std::string rest = stops_.push(decoder_->finish());
  return added(rest + stops_.finish());
}

std::string ContinuedText::added(const std::string& text) {
  text_ += text;
  return text;
}

}  // namespace shardwise::cli
