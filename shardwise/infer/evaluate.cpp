#include "shardwise/infer/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "shardwise/infer/cache.h"
#include "shardwise/infer/stage_forward.h"
#include "shardwise/infer/token_ids.h"
#include "shardwise/nn/loss.h"

namespace shardwise::infer {
namespace {

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

/// Returns the summed loss of windows, [length, count]; 0 except on the last stage.
double loss_of(const model::DecoderWeights& weights, const StageForward& stage, const at::Tensor& inputs,
               const at::Tensor& targets) {
  const nn::Step step(weights.group(), inputs.size(0));
  // A divisor of 1 gives the sum over the tokens.
  return stage.loss(inputs, targets, /*options=*/1.0, step);
}

/// Returns rows [begin, end) of the windows, one window after another: [rows, 1].
at::Tensor packed_rows(const at::Tensor& windows, int64_t begin, int64_t end) {
  return windows.narrow(/*dim=*/0, begin, end - begin).t().reshape({-1, 1});
}

/// Like loss_of, but each token attends to keys and values in a cache.
double cached_loss_of(const model::DecoderWeights& weights, const StageForward& stage,
                      const at::Tensor& inputs, const at::Tensor& targets, at::ScalarType dtype) {
  constexpr int64_t kRows = 512;
  const int64_t length = inputs.size(0), count = inputs.size(1), rows = std::max(kRows / count, int64_t{1});
  std::vector<nn::Cache> caches;
  for (int64_t i = 0; i < count; ++i) caches.push_back(empty_cache(weights, length, dtype));
  double sum = 0;
  for (int64_t begin = 0; begin < length; begin += rows) {
    const int64_t end = std::min(begin + rows, length), all = (end - begin) * count;
    nn::Step step(weights.group(), all);
    for (nn::Cache& cache : caches) step.cached.push_back({&cache, end - begin});
    const at::Tensor logits = stage.logits(packed_rows(inputs, begin, end), at::arange(all), step);
    for (nn::Cache& cache : caches) cache.length = end;
    if (!stage.is_last()) continue;
    const nn::Placed<nn::Sharded<nn::kFeature>> placed(logits.unsqueeze(1));
    sum += nn::cross_entropy(placed, packed_rows(targets, begin, end), weights.layout().vocab,
                             /*options=*/1.0, nn::Step(weights.group(), all))
               .local()
               .item<double>();
  }
  return sum;
}

/// Windows that this stage has processed. The last stage's loss is not yet added.
struct EvaluatedWindows {
  int64_t predicted;
  double loss;  // on the last stage
};

}  // namespace

double Evaluation::perplexity() const {
  return std::exp(nll);
}

Evaluation evaluate(const model::DecoderWeights& weights, const std::vector<int64_t>& text,
                    const EvaluationWindows& windows, const std::function<void(int64_t)>& on_window) {
  return evaluate(weights, comm::Group(weights.group().device()), text, windows, on_window);
}

Evaluation evaluate(const model::DecoderWeights& weights, const comm::Group& pipeline,
                    const std::vector<int64_t>& text, const EvaluationWindows& windows,
                    const std::function<void(int64_t)>& on_window) {
  const at::NoGradGuard no_grad;
  check(weights.config(), text, windows);
  const StageForward stage("eval", weights, pipeline);
  const int64_t labels = std::ssize(text) - 1;
  const at::ScalarType cached = cache_dtype("eval", weights, windows.cache_dtype);
  Evaluation result;
  double sum = 0;
  std::deque<EvaluatedWindows> in_flight;
  const auto finish_oldest = [&] {
    const auto [predicted, loss] = in_flight.front();
    in_flight.pop_front();
    sum += stage.is_last() ? loss : stage.receive(1)[0];
    result.predicted += predicted;
    if (on_window) on_window(result.predicted);
  };
  for (int64_t begin = 0; begin < labels;) {
    const int64_t length = std::min(windows.length, labels - begin);
    const int64_t count = std::min(windows.batch_size, (labels - begin) / length);
    const at::Tensor inputs = columns(text, begin, length, count),
                     targets = columns(text, begin + 1, length, count);
    if (std::ssize(in_flight) == stage.stages()) finish_oldest();
    const double loss = windows.cache_dtype ? cached_loss_of(weights, stage, inputs, targets, cached)
                                            : loss_of(weights, stage, inputs, targets);
    if (stage.is_last()) stage.send({loss});
    in_flight.push_back({length * count, loss});
    begin += length * count;
  }
  while (!in_flight.empty()) finish_oldest();
  result.nll = sum / static_cast<double>(labels);
  return result;
}

}  // namespace shardwise::infer
