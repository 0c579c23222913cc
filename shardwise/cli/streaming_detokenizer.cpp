#include "shardwise/cli/streaming_detokenizer.h"

#include "shardwise/text/utf8.h"

namespace shardwise::cli {

StreamingDetokenizer::StreamingDetokenizer(const text::Tokenizer& tokenizer,
                                           const std::vector<std::string>& stops)
    : tokenizer_(tokenizer), decoder_(tokenizer.stream(text::SpecialTokens::without)), stops_(stops) {}

std::string StreamingDetokenizer::push(int64_t id) {
  const bool is_known = tokenizer_.has(id);
  unknown_ += is_known ? 0 : 1;
  return added(stops_.push(is_known ? decoder_->push(id) : decoder_->finish().append(text::kReplacement)));
}

std::string StreamingDetokenizer::finish() {
  const std::string rest = stops_.push(decoder_->finish());
  return added(rest + stops_.finish());
}

std::string StreamingDetokenizer::added(const std::string& text) {
  text_ += text;
  return text;
}

}  // namespace shardwise::cli
