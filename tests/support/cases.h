// Loads a sharded model from unsharded weights, runs one training step, and reassembles the ranks' shards, so
// that the tests of model/ can compare it with the reference.
#pragma once
#include <functional>

#include "shardwise/model/decoder.h"
#include "shardwise/model/names.h"
#include "tests/support/reference.h"

namespace shardwise::testing {

enum class Stream { tp, tp_sp };  // Invariant; Sharded<kSequence>

/// How the conjugate collectives run: reading peers' memory in place, or as on any other backend, with the
/// gathered input saved (`gathered`) or gathered again (`regathered`); with overlap or without
/// (`_no_overlap`).
enum class Path { symmetric, gathered, regathered, symmetric_no_overlap, regathered_no_overlap };
inline constexpr Path kPaths[] = {Path::symmetric, Path::gathered, Path::regathered,
                                  Path::symmetric_no_overlap, Path::regathered_no_overlap};

comm::Group on_path(const comm::Group& group, Path path);

/// Calls `visit(parameter, stored)` for every tensor of a checkpoint, in a fixed order.
void for_each_stored(const model::DecoderWeights& weights,
                     const std::function<void(size_t parameter, const model::StoredTensor&)>& visit);

/// Fills every local slice from the unsharded tensors.
void load_slices_(const model::DecoderWeights& weights, const Tensors& full);

/// Returns the Step that a training loop creates for this micro-batch.
nn::Step make_step(const comm::Group& group, Path path, int64_t sequence, kernels::RandomKey key,
                   double dropout);

struct StepResult {
  double loss;
  at::Tensor input_gradient;  // of the embedding's output, [s, b, h] on every rank; undefined if frozen
};

/// Runs forward and backward, which accumulates into main_grad. Does not synchronize gradients.
StepResult forward_backward(const model::DecoderWeights& weights, Stream stream, const Batch& batch,
                            const nn::Step& step);

parallel::ParamSpecs specs_of(const model::DecoderWeights& weights, Stream stream);
void zero_gradients_(const model::DecoderWeights& weights);

/// The parameters of all ranks (threads of this process), which every rank may read between `publish` and
/// `retract`.
class Board {
 public:
  explicit Board(int ranks) : parameters_(ranks) {}

  /// Makes this rank's parameters readable. Collective.
  void publish(const model::DecoderWeights& weights);
  /// Waits until all ranks have finished reading. Collective.
  void retract(const comm::Group& group) { group.barrier(); }

  enum class What { gradient, value };
  /// Returns the unsharded tensor, with each element from its owner. Throws if an element does not have one
  /// owner.
  at::Tensor full(size_t parameter, const model::StoredTensor& stored, What what) const;
  /// Returns the number of ranks whose slices are not bitwise equal to those of `full`.
  int differing(const at::Tensor& full, size_t parameter, const model::StoredTensor& stored, What what) const;

 private:
  at::Tensor slice(int rank, size_t parameter, What what, const model::StoredTensor& stored,
                   const base::ShardRule::Piece& piece) const;
  std::vector<std::vector<parallel::ParameterPtr>>
      parameters_;  // shared, for a rank that fails drops its model
};

}  // namespace shardwise::testing
