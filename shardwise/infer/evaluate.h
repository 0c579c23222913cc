// Evaluates a model's perplexity on a text.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "shardwise/model/decoder.h"

namespace shardwise::infer {

/// The split of a text into windows. A token is predicted from the tokens before it in its window. Each
/// window starts with the last token of the window before, so every token except the text's first is
/// predicted once.
struct EvaluationWindows {
  int64_t length;          // input tokens per window
  int64_t batch_size = 4;  // windows per forward
  /// Evaluates by a KV cache of this dtype, as generation computes: int8, or that of the weights. nullopt:
  /// without a cache.
  std::optional<at::ScalarType> cache_dtype = std::nullopt;
};

/// The result of an evaluation.
struct Evaluation {
  int64_t predicted = 0;  // predicted tokens
  double nll = 0;         // mean negative log-likelihood per token, natural logarithm

  /// Returns exp(nll).
  double perplexity() const;
};

/// Evaluates `text` (collective). `on_window` receives the number of tokens predicted so far after each
/// batch. Cost: one forward over the text under TP+SP; with a cache under TP, of up to 512 tokens at once.
/// Errors: c10::ValueError if the text has fewer than two tokens or an id outside the vocabulary, if a window
/// exceeds max_position_embeddings, or for another cache dtype.
Evaluation evaluate(const model::DecoderWeights& weights, const std::vector<int64_t>& text,
                    const EvaluationWindows& windows,
                    const std::function<void(int64_t predicted)>& on_window = {});

/// The same over pipeline stages, with one forward in flight on each (generate.h, the same arguments). All
/// stages return the result.
Evaluation evaluate(const model::DecoderWeights& weights, const comm::Group& pipeline,
                    const std::vector<int64_t>& text, const EvaluationWindows& windows,
                    const std::function<void(int64_t predicted)>& on_window = {});

}  // namespace shardwise::infer
