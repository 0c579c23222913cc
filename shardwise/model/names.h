// From a parameter to the tensors that a family's checkpoints keep for it.
#pragma once
#include <string>
#include <vector>

#include "shardwise/model/config.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::model {

/// A whole tensor on disk, and which of a parameter's segments lie in it: all of them or one.
struct StoredTensor {
  std::string name;            // model.layers.0.self_attn.q_proj.weight
  std::vector<int64_t> shape;  // of the whole, as it lies on disk
  int64_t dim;                 // of `shape`: the one that is cut; 0 when nothing is
  bool is_transposed;          // [in, out] on disk
  Holds holds = Holds::numbers;

  /// The parameter's local slice, or a tensor of that shape, as it lies on disk: a view.
  at::Tensor oriented(const at::Tensor& local) const;
  /// What one rank holds along `dim`, one run a segment: where in the stored tensor, and where in the
  /// oriented slice.
  std::vector<base::ShardRule::Piece> held(int rank) const;
  /// Of the held runs put together.
  std::vector<int64_t> held_shape(int rank) const;
  /// The part of `held` that this rank writes: each element has one writer.
  std::vector<base::ShardRule::Piece> owned(int rank) const;

  base::ShardRule rule = {};  // of the parameter
  size_t first_segment = 0, segments = 0;

 private:
  std::vector<base::ShardRule::Piece> of_own_segments(std::vector<base::ShardRule::Piece> pieces) const;
};

/// The tensors that files of `config`'s family keep for `parameter`. With Llama
/// `model.layers.0.self_attn.qkv_proj.weight` → q_proj, k_proj, v_proj.
/// A packed weight's are those of all its parts.
std::vector<StoredTensor> stored_tensors(const parallel::Parameter& parameter, const Config& config);

/// One part of a packed weight as a parameter [out blocks, in blocks] without a value: `rule` cuts it into
/// the blocks that each rank's slice of the weight touches. One of no output dim is [in].
parallel::Parameter packed_parameter(const parallel::Parameter& weight, const PackedPart& part,
                                     const Config& config);
/// The tensors that hold it.
std::vector<StoredTensor> stored_tensors(const parallel::Parameter& weight, const PackedPart& part,
                                         const Config& config);

}  // namespace shardwise::model
