// Samples one token from logits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardwise::infer {

/// Sampling parameters, applied in transformers' order: repetition penalty, temperature, then top_k, top_p,
/// min_p and typical_p, each on the tokens that remain.
struct Sampling {
  double temperature = 0;  // 0: greedy; 1: the model's distribution; above 1: flatter
  int64_t top_k = 0;       // keep the top_k most likely tokens; 0: all
  double top_p = 1;        // keep the fewest most likely tokens whose probabilities sum to top_p
  double min_p = 0;        // drop tokens below min_p times the largest probability
  double typical_p = 1;    // keep the fewest tokens, those whose information is nearest to the entropy first,
                           // whose probabilities sum to typical_p (Meister et al. 2022)
  double repetition_penalty = 1;  // for tokens already in the sequence: divides positive logits and
                                  // multiplies others (Keskar et al. 2019, §4.1)
  uint64_t seed = 0;              // of the random numbers
};

/// Checks the ranges of the parameters. Throws c10::ValueError with a message that starts with `where`.
void check_sampling(const Sampling& sampling, const std::string& where);

/// Candidate tokens with their logits, in ascending order of ids.
struct TokenLogits {
  std::vector<int64_t> ids;    // of the candidates
  std::vector<double> logits;  // one per id
};

/// Returns how many of the highest logits the sampling needs; `vocab` if it needs all.
int64_t candidates_needed(const Sampling& sampling, int64_t vocab);

/// Samples the token at `position` of the sequence from at least candidates_needed() candidates, whose logits
/// already include the repetition penalty. The random number depends on seed and position alone. Temperature
/// 0 selects the highest logit, ties by the lowest id. Throws c10::Error if a logit is NaN or +inf, or all
/// are −inf.
int64_t sample_token(const TokenLogits& candidates, const Sampling& sampling, int64_t position);

}  // namespace shardwise::infer
