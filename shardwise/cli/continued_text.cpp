#include "shardwise/cli/continued_text.h"

#include <c10/util/Exception.h>

namespace shardwise::cli {

ContinuedText::ContinuedText(const text::Tokenizer& tokenizer, const std::vector<std::string>& stops)
    : vocab_size_(tokenizer.vocab_size()),
      decoder_(tokenizer.stream(text::Specials::kWithout)),
      stops_(stops) {}

std::string ContinuedText::push(int64_t id) {
  TORCH_CHECK(id < vocab_size_, "generate: the model chose token ", id, " of a tokenizer with ", vocab_size_,
              ": it was trained with another one; --tokenizer names it");
  return added(stops_.push(decoder_->push(id)));
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
