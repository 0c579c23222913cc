// The one choice between TP and TP+SP: everything after it is the same code.
#pragma once
#include <functional>

#include "shardwise/model/decoder.h"

namespace shardwise::train {

/// A model assembled over one residual stream: its loss, and what its parameters' gradients are.
struct StreamedModel {
  std::function<nn::Placed<nn::Invariant>(const at::Tensor& ids, const at::Tensor& labels,
                                          const nn::LossOptions& options, const nn::Step& step)>
      loss;
  parallel::ParamSpecs specs;
};

/// `weights` must outlive it.
template <nn::ResidualStream Stream>
StreamedModel assemble_over(const model::DecoderWeights& weights) {
  const model::Decoder<Stream> model(weights);
  return {[model](const at::Tensor& ids, const at::Tensor& labels, const nn::LossOptions& options,
                  const nn::Step& step) { return model.loss(ids, labels, options, step); },
          weights.specs<Stream>()};
}

inline StreamedModel assemble(const model::DecoderWeights& weights, bool sequence_parallel) {
  return sequence_parallel ? assemble_over<nn::Sharded<nn::kSequence>>(weights)
                           : assemble_over<nn::Invariant>(weights);
}

}  // namespace shardwise::train
