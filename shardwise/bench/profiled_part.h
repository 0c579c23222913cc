// An MLP or a decoder block of a model with random weights and a random input, as training runs it, to be
// timed.
#pragma once
#include "shardwise/model/decoder.h"
#include "shardwise/plan/part.h"

namespace shardwise::bench {

/// What is timed.
struct PartShape {
  config::Config config;  // of the model
  at::ScalarType dtype;
  int64_t seq_len, batch_size;
  bool is_sequence_parallel;
  plan::Part part;
  plan::PassesOf passes;
};

/// Returns the shape over `ranks` ranks for plan/. `in_place`: the ranks read each other's memory.
plan::PartWorkload workload_of(const PartShape& shape, int64_t ranks, bool in_place);

/// Returns the shape of rank 0's shard as a model of its own: the same products on one rank, without
/// collectives.
PartShape local_shape(const PartShape& shape, int64_t ranks);

/// The part on the ranks of a group.
class ProfiledPart {
 public:
  /// Collective: draws the weights, which are the same at every number of ranks.
  ProfiledPart(const PartShape& shape, const comm::Group& group);

  /// Runs the passes. Collective.
  void run();
  /// Runs the forward and returns its output [s, b, h], on every rank. Collective.
  at::Tensor output() const;
  /// Returns the bytes of this rank's shards of the part's weights.
  int64_t weight_bytes() const;

 private:
  nn::UsedParameters parameters() const;
  template <nn::ResidualStream Stream>
  nn::Placed<Stream> forward(const at::Tensor& x) const;
  /// Returns this rank's part of the output.
  at::Tensor local_output(const at::Tensor& x) const;
  /// Returns this rank's part of `full`, where peers can read it.
  at::Tensor local_part(const at::Tensor& full) const;

  PartShape shape_;
  model::DecoderWeights weights_;
  nn::Step step_;
  at::Tensor x_, dy_;  // this rank's parts of the input and of the output's gradient
};

}  // namespace shardwise::bench
