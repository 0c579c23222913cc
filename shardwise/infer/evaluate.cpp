#include "shardwise/infer/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "shardwise/infer/token_ids.h"

namespace shardwise::infer {
namespace {

using SequenceSharded = nn::Sharded<nn::kSequence>;

void check(const config::Config& config, const std::vector<int64_t>& text, const EvaluationWindows& windows) {
  TORCH_CHECK_VALUE(text.size() >= 2, "eval: the text must have at least two tokens; got ", text.size(),
                    " [SW0388]");
  check_token_ids(text, config, "eval: the text's");
  TORCH_CHECK_VALUE(windows.length >= 1 && windows.length <= config.max_position_embeddings,
                    "eval: the window length must be from 1 to max_position_embeddings, ",
                    config.max_position_embeddings, "; got ", windows.length, " [SW0389]");
  TORCH_CHECK_VALUE(windows.batch_size >= 1, "eval: batch_size must be at least 1; got ", windows.batch_size,
                    " [SW0390]");
}

/// Returns `count` consecutive windows of `length` tokens from `begin` on, as columns: [length, count].
at::Tensor columns(const std::vector<int64_t>& text, int64_t begin, int64_t length, int64_t count) {
  const at::Tensor rows = at::empty({count, length}, at::kLong);
  std::copy_n(text.begin() + begin, count * length, rows.mutable_data_ptr<int64_t>());
  return rows.t().contiguous();
}

}  // namespace

double Evaluation::perplexity() const {
  return std::exp(nll);
}

Evaluation evaluate(const model::DecoderWeights& weights, const std::vector<int64_t>& text,
                    const EvaluationWindows& windows, const std::function<void(int64_t)>& on_window) {
  const at::NoGradGuard no_grad;
  check(weights.config(), text, windows);
  const int64_t labels = std::ssize(text) - 1;
  const model::Decoder<SequenceSharded> decoder(weights);
  Evaluation result;
  double sum = 0;
  while (result.predicted < labels) {
    const int64_t left = labels - result.predicted;
    const int64_t length = std::min(windows.length, left);
    const int64_t count = std::min(windows.batch_size, left / length);
    const at::Tensor inputs = columns(text, result.predicted, length, count),
                     targets = columns(text, result.predicted + 1, length, count);
    const nn::Step step(weights.group(), length);
    // A divisor of 1 gives the sum over the tokens.
    sum += decoder.loss(inputs, targets, /*options=*/1.0, step).local().item<double>();
    result.predicted += length * count;
    if (on_window) on_window(result.predicted);
  }
  result.nll = sum / static_cast<double>(labels);
  return result;
}

}  // namespace shardwise::infer
