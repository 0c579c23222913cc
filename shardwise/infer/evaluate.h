// How well a model predicts a text it is given.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "shardwise/model/decoder.h"

namespace shardwise::infer {

/// How a text is cut. A window's tokens are predicted from those before them in the window; the first token
/// of each but the first window is seen twice, as the last of the one before, so that every token but the
/// text's first is predicted once.
struct EvaluationWindows {
  int64_t length;          // tokens that one forward sees of a text
  int64_t batch_size = 4;  // windows of a forward
};

struct Evaluation {
  int64_t predicted = 0;  // tokens
  double nll = 0;         // their mean −log p, natural logarithm

  double perplexity() const;
};

/// Collective: of `text`, at least two tokens; `on_window` is told how many tokens have been predicted. Cost:
/// a forward of the text, under TP+SP. Errors: c10::ValueError for a text that is shorter, holds an id
/// outside the vocabulary, or for windows that do not fit max_position_embeddings.
Evaluation evaluate(const model::DecoderWeights& weights, const std::vector<int64_t>& text,
                    const EvaluationWindows& windows,
                    const std::function<void(int64_t predicted)>& on_window = {});

}  // namespace shardwise::infer
