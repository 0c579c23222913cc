// Rules that forbid or force the next token, as transformers' logits processors of the same names do.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shardwise::infer {

/// The rules of a request, named as in generation_config.json. The defaults permit every token.
struct TokenRules {
  std::vector<int64_t> suppress_tokens = {};        // never generated
  std::vector<int64_t> begin_suppress_tokens = {};  // not generated as the first token
  int64_t no_repeat_ngram_size = 0;  // no n-gram of this size occurs twice, prompt included; 0: no limit
  std::vector<std::vector<int64_t>> bad_words_ids = {};  // sequences that are not completed
  int64_t min_new_tokens = 0;                            // no EOS token before so many were generated
  int64_t min_length = 0;                                // the same, counting the prompt
  std::vector<int64_t> forced_eos_token_id = {};         // the last possible token is one of these

  bool operator==(const TokenRules&) const = default;
};

/// Checks the ids and counts. Throws c10::ValueError with a message that starts with `where`.
void check_token_rules(const TokenRules& rules, int64_t vocab, const std::string& where);

/// A sequence whose next token is to be chosen.
struct PartialSequence {
  std::span<const int64_t> tokens;         // prompt and generated tokens
  int64_t prompt_tokens;                   // of them
  int64_t max_new_tokens;                  // of the request
  const std::vector<int64_t>& eos_tokens;  // end the sequence
};

/// What the rules say about the next token.
struct TokenChoice {
  std::vector<int64_t> forced;     // if not empty, one of these, equally likely
  std::vector<int64_t> forbidden;  // none of these, forced or not; may hold an id twice
};

/// Cost: linear in the sequence and the rules.
TokenChoice choice_of(const TokenRules& rules, const PartialSequence& sequence);

}  // namespace shardwise::infer
