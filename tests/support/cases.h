// A sharded model filled from whole weights, one training step of it, and what the ranks hold put together
// again: how the tests of model/ compare it with the reference.
#pragma once
#include <functional>

#include "shardwise/model/decoder.h"
#include "shardwise/model/names.h"
#include "tests/support/reference.h"

namespace shardwise::testing {

enum class Stream { tp, tp_sp };  // Invariant; Sharded<kSequence>

/// How the crossings are made: in place on shared memory, or as on any other backend; beside the products, or
/// apart from them.
enum class Path { symmetric, keep, again, symmetric_apart, again_apart };
inline constexpr Path kPaths[] = {Path::symmetric, Path::keep, Path::again, Path::symmetric_apart,
                                  Path::again_apart};

comm::Group on_path(const comm::Group& group, Path path);

/// Calls `visit(parameter, stored)` for every tensor that a checkpoint holds, in a fixed order.
void for_each_stored(const model::DecoderWeights& weights,
                     const std::function<void(size_t parameter, const model::StoredTensor&)>& visit);

/// Fills every local slice with its part of the whole tensors.
void load_slices_(const model::DecoderWeights& weights, const Tensors& whole);

/// The step that a training loop would make for this micro-batch.
nn::Step make_step(const comm::Group& group, Path path, int64_t sequence, kernels::RandomKey key,
                   double dropout);

struct StepResult {
  double loss;
  at::Tensor input_gradient;  // of the embedding's output, [s, b, h] on every rank; undefined when frozen
};

/// Forward and backward, adding to main_grad; gradients are not yet synchronized.
StepResult forward_backward(const model::DecoderWeights& weights, Stream stream, const Batch& batch,
                            const nn::Step& step);

parallel::ParamSpecs specs_of(const model::DecoderWeights& weights, Stream stream);
void zero_gradients_(const model::DecoderWeights& weights);

/// What the ranks (threads of this process) hold, for each of them to look at between `publish` and
/// `retract`.
class Board {
 public:
  explicit Board(int ranks) : parameters_(ranks) {}

  /// Collective.
  void publish(const model::DecoderWeights& weights);
  /// Collective.
  void retract(const comm::Group& group) { group.barrier(); }

  enum class What { gradient, value };
  /// The whole tensor from each element's one owner. Throws when an element has none or two.
  at::Tensor whole(size_t parameter, const model::StoredTensor& stored, What what) const;
  /// How many ranks hold other bits than `whole`.
  int differing(const at::Tensor& whole, size_t parameter, const model::StoredTensor& stored,
                What what) const;

 private:
  at::Tensor slice(int rank, size_t parameter, What what, const model::StoredTensor& stored,
                   const base::ShardRule::Piece& piece) const;
  std::vector<std::vector<parallel::ParameterPtr>>
      parameters_;  // shared, for a rank that fails drops its model
};

}  // namespace shardwise::testing
