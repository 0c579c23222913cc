// Choosing one token from its logits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardwise::infer {

/// How the next token is chosen. In this order: the penalty, the temperature, then each restriction of what
/// the ones before it left, as transformers applies them.
struct Sampling {
  double temperature = 0;         // 0: the likeliest token; 1: as the model says; above: flatter
  int64_t top_k = 0;              // only so many of the likeliest; 0: all
  double top_p = 1;               // the fewest likeliest whose probabilities reach this sum
  double min_p = 0;               // none below this share of the likeliest's probability
  double repetition_penalty = 1;  // a token of the text before: a positive logit is divided by it, others are
                                  // multiplied (Keskar et al. 2019, §4.1)
  uint64_t seed = 0;
};

/// Errors: c10::ValueError beginning with `where` that names the value and the rule.
void check_sampling(const Sampling& sampling, const std::string& where);

/// Tokens that may be chosen, ids ascending.
struct Candidates {
  std::vector<int64_t> ids;
  std::vector<double> logits;
};

/// How many of the highest logits can decide the choice; `vocab` where all do.
int64_t candidates_needed(const Sampling& sampling, int64_t vocab);

/// The token at `position` of the text, from at least as many candidates as needed, already penalized. Random
/// numbers are a function of seed and position alone. Temperature 0 takes the lowest id among the highest
/// logits. Errors: c10::Error when a logit is NaN or all are −inf.
int64_t choose_token(const Candidates& candidates, const Sampling& sampling, int64_t position);

}  // namespace shardwise::infer
