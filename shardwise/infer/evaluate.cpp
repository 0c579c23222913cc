#include "shardwise/infer/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "shardwise/infer/cache.h"
#include "shardwise/infer/token_ids.h"
#include "shardwise/nn/loss.h"

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

/// Returns the summed loss of windows, [length, count].
double loss_of(const model::DecoderWeights& weights, const at::Tensor& inputs, const at::Tensor& targets) {
  const model::Decoder<SequenceSharded> decoder(weights);
  const nn::Step step(weights.group(), inputs.size(0));
  // A divisor of 1 gives the sum over the tokens.
  return decoder.loss(inputs, targets, /*options=*/1.0, step).local().item<double>();
}

/// Returns rows [begin, end) of the windows, one window after another: [rows, 1].
at::Tensor packed_rows(const at::Tensor& windows, int64_t begin, int64_t end) {
  return windows.narrow(/*dim=*/0, begin, end - begin).t().reshape({-1, 1});
}

/// Like loss_of, but each token attends to keys and values in a cache.
double cached_loss_of(const model::DecoderWeights& weights, const at::Tensor& inputs,
                      const at::Tensor& targets, at::ScalarType dtype) {
  constexpr int64_t kRows = 512;
  const int64_t length = inputs.size(0), count = inputs.size(1), rows = std::max(kRows / count, int64_t{1});
  const model::Decoder<nn::Invariant> decoder(weights);
  std::vector<nn::Cache> caches;
  for (int64_t i = 0; i < count; ++i) caches.push_back(empty_cache(weights, length, dtype));
  double sum = 0;
  for (int64_t begin = 0; begin < length; begin += rows) {
    const int64_t end = std::min(begin + rows, length), all = (end - begin) * count;
    nn::Step step(weights.group(), all);
    for (nn::Cache& cache : caches) step.cached.push_back({&cache, end - begin});
    const auto logits = decoder.next_logits(packed_rows(inputs, begin, end), at::arange(all), step);
    for (nn::Cache& cache : caches) cache.length = end;
    sum += nn::cross_entropy(logits, packed_rows(targets, begin, end), weights.layout().vocab,
                             /*options=*/1.0, nn::Step(weights.group(), all))
               .local()
               .item<double>();
  }
  return sum;
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
  const at::ScalarType cached = cache_dtype("eval", weights, windows.cache_dtype);
  Evaluation result;
  double sum = 0;
  while (result.predicted < labels) {
    const int64_t left = labels - result.predicted;
    const int64_t length = std::min(windows.length, left);
    const int64_t count = std::min(windows.batch_size, left / length);
    const at::Tensor inputs = columns(text, result.predicted, length, count),
                     targets = columns(text, result.predicted + 1, length, count);
    sum += windows.cache_dtype ? cached_loss_of(weights, inputs, targets, cached)
                               : loss_of(weights, inputs, targets);
    result.predicted += length * count;
    if (on_window) on_window(result.predicted);
  }
  result.nll = sum / static_cast<double>(labels);
  return result;
}

}  // namespace shardwise::infer
