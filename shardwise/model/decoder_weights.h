// One rank's weights of a decoder-only Transformer.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/config/parameters.h"
#include "shardwise/nn/block.h"
#include "shardwise/nn/embedding.h"
#include "shardwise/nn/positions.h"
#include "shardwise/parallel/parameter_parts.h"

namespace shardwise::model {

/// Checks that a device can compute with the weights: activations are rounded to int8 only on the CPU.
/// `device`: its name.
/// Errors: c10::ValueError, beginning with `where`.
void check_weight_device(const std::string& where, const config::Config& config, const std::string& device);

/// What a model's weights are for. Inference packs weights where products with panels are faster. Replicas of
/// a training run leave the allocation of the values to parallel::DataParallel, unless they are whole.
enum class WeightUse { training, replicated_training, inference };

/// Called with a parameter.
using OnParameter = std::function<void(parallel::Parameter&)>;

/// One rank's shards of all weights, or of those of a pipeline stage. Decoders of every residual stream type
/// share this object.
class DecoderWeights {
 public:
  /// Allocates uninitialized weights, except packed ones, which `initialize_` or a checkpoint allocates, and
  /// those of replicated_training; fill them with one of these. Weights that the config quantizes are packed;
  /// all other weights and the activations have `dtype`. `stage`: the runs of blocks, ascending, of a
  /// pipeline stage; the stage with the first block has the embeddings too, that with the last one final norm
  /// and head. Empty: all blocks.
  DecoderWeights(const config::Config& config, const comm::Group& group, at::ScalarType dtype,
                 WeightUse use = WeightUse::training, std::vector<base::Range> stage = {});
  DecoderWeights(const DecoderWeights&) = delete;

  /// Draws every weight from `seed`, with the same values at every tp size: normal(0, initializer_range),
  /// with o_proj and down_proj scaled by 1/sqrt(2·layers); norms one, biases zero.
  /// Calls `initialized` with each parameter, in the order of used_parameters, once it has its value.
  void initialize_(uint64_t seed, const OnParameter& initialized = {});

  /// Returns the config of the model.
  const config::Config& config() const { return config_; }
  /// Returns the splits over the ranks.
  const config::Layout& layout() const { return layout_; }
  /// Describes the parameters, in the order of used_parameters.
  const config::ParameterTable& table() const { return table_; }
  /// Returns the tp group.
  const comm::Group& group() const { return group_; }
  /// Returns the dtype of activations and of weights that are not quantized.
  at::ScalarType dtype() const { return dtype_; }
  /// Returns what the weights are for.
  WeightUse use() const { return use_; }
  /// Returns every parameter once, in a fixed order (a tied lm_head is the embedding); of a stage those that
  /// it trains.
  const nn::UsedParameters& used_parameters() const { return used_parameters_; }
  /// Returns those of the whole model, in the same order. Of those of other stages only names and shapes
  /// exist: their values are on the meta device.
  const nn::UsedParameters& all_parameters() const { return all_parameters_; }
  /// Returns the last stage's copy of the embedding that its head is tied to, which the first stage trains;
  /// null if it is the same stage, or nothing is tied.
  parallel::ParameterPtr tied_copy() const;
  /// Returns used_parameters, and then tied_copy if there is one.
  nn::UsedParameters held_parameters() const;
  /// Returns the blocks of one run of the stage, in the order of the forward.
  std::span<const nn::BlockLayers> blocks(size_t chunk = 0) const;
  /// Returns the numbers of the stage's blocks, run by run.
  const std::vector<base::Range>& stage() const { return stage_; }
  /// Returns true if this rank has the embeddings.
  bool has_embedding() const { return stage_.front().begin == 0; }
  /// Returns true if this rank has the last norm and the head.
  bool has_head() const { return stage_.back().end == config_.num_hidden_layers; }
  /// Returns up to how many rows of one forward have the bits that each row has alone.
  int64_t rows_with_equal_bits() const;
  /// Returns the parameter specs for the optimizer. The residual stream type determines which gradients are
  /// partial sums.
  template <nn::ResidualStream Stream>
  parallel::ParamSpecs specs() const {
    return nn::specs_of<Stream>(used_parameters_);
  }
  /// Returns the same specs in the parts that backward completes one after the other: the embeddings, each
  /// block, and the last norm with the head, unless this is tied. In a step without split_batch that computes
  /// a loss, nn::Step::part_begins and part_gradients_done are called with their numbers.
  template <nn::ResidualStream Stream>
  parallel::ParameterParts parts() const;

 private:
  template <nn::ResidualStream>
  friend class Decoder;
  config::Config config_;
  comm::Group group_;
  at::ScalarType dtype_;
  WeightUse use_;
  std::vector<base::Range> stage_;
  config::Layout layout_;
  config::ParameterTable table_;
  nn::VocabParallelEmbedding embedding_;
  std::optional<nn::LearnedPositions> positions_;
  std::vector<nn::BlockLayers> blocks_;
  nn::Norm norm_;
  nn::ColumnParallelLinear head_;
  nn::UsedParameters all_parameters_, used_parameters_;
};

}  // namespace shardwise::model
