#include "shardwise/infer/token_rules.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::infer {
namespace {

void append(std::vector<int64_t>& ids, const std::vector<int64_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

/// Appends the tokens that followed an earlier occurrence of the last `size` - 1 tokens.
void forbid_repeats(int64_t size, std::span<const int64_t> tokens, std::vector<int64_t>& forbidden) {
  const int64_t length = std::ssize(tokens);
  if (size == 0 || length < size) return;
  const auto last = tokens.last(static_cast<size_t>(size - 1));
  for (int64_t begin = 0; begin + size <= length; ++begin) {
    const auto earlier = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
    if (std::ranges::equal(earlier.first(last.size()), last)) forbidden.push_back(earlier.back());
  }
}

/// Appends the last token of each sequence whose other tokens are the last of the text. One that consists of
/// an EOS token is no bad word, as in transformers.
void forbid_bad_words(const TokenRules& rules, const PartialSequence& sequence,
                      std::vector<int64_t>& forbidden) {
  for (const std::vector<int64_t>& word : rules.bad_words_ids) {
    if (word.size() > sequence.tokens.size()) continue;
    const std::span<const int64_t> begin(word.data(), word.size() - 1);
    const bool is_eos = begin.empty() && std::ranges::count(sequence.eos_tokens, word.back()) > 0;
    if (!is_eos && std::ranges::equal(sequence.tokens.last(begin.size()), begin))
      forbidden.push_back(word.back());
  }
}

void check_ids(const std::vector<int64_t>& ids, int64_t vocab, const std::string& label) {
  for (const int64_t id : ids) {
    TORCH_CHECK_VALUE(id >= 0 && id < vocab, label, " must have token ids from 0 to below the vocabulary, ",
                      vocab, "; got ", id, " [SW0538]");
  }
}

}  // namespace

void check_token_rules(const TokenRules& rules, int64_t vocab, const std::string& where) {
  for (const auto& [name, count] : {std::pair("no_repeat_ngram_size", rules.no_repeat_ngram_size),
                                    {"min_new_tokens", rules.min_new_tokens},
                                    {"min_length", rules.min_length}})
    TORCH_CHECK_VALUE(count >= 0, where, ": ", name, " must be 0 or more; got ", count, " [SW0539]");
  check_ids(rules.suppress_tokens, vocab, where + ": suppress_tokens");
  check_ids(rules.begin_suppress_tokens, vocab, where + ": begin_suppress_tokens");
  check_ids(rules.forced_eos_token_id, vocab, where + ": forced_eos_token_id");
  for (const std::vector<int64_t>& word : rules.bad_words_ids) {
    TORCH_CHECK_VALUE(!word.empty(), where,
                      ": bad_words_ids must have sequences of at least one token; got [] [SW0540]");
    check_ids(word, vocab, where + ": bad_words_ids");
  }
}

TokenChoice choice_of(const TokenRules& rules, const PartialSequence& sequence) {
  const int64_t length = std::ssize(sequence.tokens), generated = length - sequence.prompt_tokens;
  TokenChoice choice;
  if (generated == sequence.max_new_tokens - 1) choice.forced = rules.forced_eos_token_id;
  if (choice.forced.empty()) {
    forbid_repeats(rules.no_repeat_ngram_size, sequence.tokens, choice.forbidden);
    forbid_bad_words(rules, sequence, choice.forbidden);
    if (generated < rules.min_new_tokens || length < rules.min_length)
      append(choice.forbidden, sequence.eos_tokens);
  }
  append(choice.forbidden, rules.suppress_tokens);
  if (generated == 0) append(choice.forbidden, rules.begin_suppress_tokens);
  return choice;
}

}  // namespace shardwise::infer
