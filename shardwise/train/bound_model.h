// Binds a model to a placement of the residual stream, which is the only difference between TP and TP+SP.
#pragma once
#include <functional>

#include "shardwise/model/decoder.h"

namespace shardwise::train {

/// Computes the loss of one micro-batch.
using LossFn = std::function<nn::Placed<nn::Invariant>(const at::Tensor& ids, const at::Tensor& labels,
                                                       const nn::LossOptions& options, const nn::Step& step)>;

/// A model bound to a residual-stream placement: its loss and the gradient placements of its parameters.
struct BoundModel {
  LossFn loss;
  parallel::ParamSpecs specs;
  parallel::ParameterParts parts;  // the same, in parts
};

/// Binds the model to a residual stream with placement `Stream`. `weights` must outlive the result.
template <nn::ResidualStream Stream>
BoundModel bind_to(const model::DecoderWeights& weights) {
  const model::Decoder<Stream> model(weights);
  return {[model](const at::Tensor& ids, const at::Tensor& labels, const nn::LossOptions& options,
                  const nn::Step& step) { return model.loss(ids, labels, options, step); },
          weights.specs<Stream>(), weights.parts<Stream>()};
}

/// Binds the model to a sequence-sharded residual stream under SP, else to a replicated one.
inline BoundModel bind_to_residual_stream(const model::DecoderWeights& weights, bool sequence_parallel) {
  return sequence_parallel ? bind_to<nn::Sharded<nn::kSequence>>(weights) : bind_to<nn::Invariant>(weights);
}

}  // namespace shardwise::train
