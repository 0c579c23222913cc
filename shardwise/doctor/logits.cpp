#include "shardwise/doctor/logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/doctor/bound.h"
#include "shardwise/doctor/formula.h"

namespace shardwise::doctor {

using at::Tensor;
using Valid = std::vector<base::Range>;

namespace {

constexpr int64_t kSequences = 3;

/// Returns different ids for every sequence.
Tensor ids_of(const model::Config& config) {
  const int64_t s = config.max_position_embeddings;
  return (at::arange(s * kSequences, at::kLong) * 37 + 11).remainder(config.vocab_size).view({s, kSequences});
}

/// Valid ranges: all of the first sequence, the end of the second, the middle of the third.
Valid padded(int64_t s) {
  return {{0, s}, {s / 3, s}, {2, s - 2}};
}

Tensor logits_of(const model::DecoderWeights& weights, const Tensor& ids, const Valid& valid) {
  nn::Step step(weights.group(), ids.size(0), kernels::RandomKey::of(0));
  step.valid = valid;
  return model::Decoder<nn::Invariant>(weights).logits(ids, step).local();
}

/// Returns the largest difference of the logits of tokens, ignoring padding.
Difference largest_difference(const Tensor& logits, const Tensor& formula, const Valid& valid) {
  Difference all;
  for (int64_t i = 0; i < logits.size(1); ++i) {
    const base::Range range = valid.empty() ? base::Range{0, logits.size(0)} : valid[static_cast<size_t>(i)];
    const auto tokens = [&](const Tensor& x) {
      return x.select(/*dim=*/1, i).narrow(0, range.begin, range.size());
    };
    const Difference one = difference(tokens(logits), tokens(formula));
    all.scale = std::max(all.scale, one.scale);
    if (std::isfinite(all.largest) && !(one.largest <= all.largest)) all.largest = one.largest;
  }
  return all;
}

}  // namespace

Check check_logits(const std::filesystem::path& directory) {
  const at::NoGradGuard no_grad;
  const model::Config config = model::load_config(directory);
  const model::DecoderWeights weights(config, comm::Group(), at::kDouble);
  checkpoint::load_weights(directory, weights);
  const Tensor ids = ids_of(config);
  double largest = 0;
  for (const Valid& valid : {Valid(), padded(ids.size(0))}) {
    const Difference found = largest_difference(logits_of(weights, ids, valid),
                                                formula_logits(directory, config, ids, valid), valid);
    if (!(found.largest <= fp64_bound(found.scale)))
      return {
          "formula", "", false,
          fmt::format("logits{} differ from the published formulas by {:.2e}; the largest logit is {:.2e}",
                      valid.empty() ? "" : " of padded sequences", found.largest, found.scale)};
    largest = std::max(largest, found.largest / found.scale);
  }
  return {"formula", "", true,
          fmt::format("logits in fp64, with and without padding, within {:.0e} of {}'s published formulas",
                      largest, config.model_type)};
}

}  // namespace shardwise::doctor
