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
  parallel::ParamSpecs specs;      // of the parameters that this rank trains
  parallel::ParameterParts parts;  // those of the whole model, in parts
  parallel::ParamSpecs all_specs;  // those of the whole model, in their order

  // The parts of the loss that pipeline stages have (model::Decoder), on this rank's tensors.
  std::function<at::Tensor(const at::Tensor& ids, const nn::Step& step)> embedded;
  std::function<at::Tensor(const at::Tensor& x, size_t chunk, const nn::Step& step)> through_blocks;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& labels, const nn::LossOptions& options,
                           const nn::Step& step)>
      loss_of;
  /// Returns the shape of this rank's residual stream for `ids` [s, b].
  std::function<std::vector<int64_t>(const at::Tensor& ids, const nn::Step& step)> stream_shape;
};

/// Binds the model to a residual stream with placement `Stream`. `weights` must outlive the result.
template <nn::ResidualStream Stream>
BoundModel bind_to(const model::DecoderWeights& weights) {
  const model::Decoder<Stream> model(weights);
  using nn::Placed, nn::Step, nn::LossOptions, at::Tensor;
  return {
      .loss = [model](const Tensor& ids, const Tensor& labels, const LossOptions& options,
                      const Step& step) { return model.loss(ids, labels, options, step); },
      .specs = weights.specs<Stream>(),
      .parts = weights.parts<Stream>(),
      .all_specs = nn::specs_of<Stream>(weights.all_parameters()),
      .embedded = [model](const Tensor& ids, const Step& step) { return model.embedded(ids, step).local(); },
      .through_blocks =
          [model](const Tensor& x, size_t chunk, const Step& step) {
            return model.through_blocks(Placed<Stream>(x), chunk, step).local();
          },
      .loss_of =
          [model](const Tensor& x, const Tensor& labels, const LossOptions& options, const Step& step) {
            return model.loss_of(Placed<Stream>(x), labels, options, step).local();
          },
      .stream_shape =
          [h = weights.config().hidden_size](const Tensor& ids, const Step& step) {
            const bool is_sharded = std::is_same_v<Stream, nn::Sharded<nn::kSequence>>;
            return std::vector<int64_t>{is_sharded ? step.local_sequence().size() : ids.size(0), ids.size(1),
                                        h};
          }};
}

/// Binds the model to a sequence-sharded residual stream under SP, else to a replicated one.
inline BoundModel bind_to_residual_stream(const model::DecoderWeights& weights, bool sequence_parallel) {
  return sequence_parallel ? bind_to<nn::Sharded<nn::kSequence>>(weights) : bind_to<nn::Invariant>(weights);
}

}  // namespace shardwise::train
