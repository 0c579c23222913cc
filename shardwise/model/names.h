// Maps a parameter to the tensors that store it in a family's checkpoints.
#pragma once
#include <string>
#include <vector>

#include "shardwise/config/parameters.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::model {

/// A full tensor on disk and the segments of a parameter that it contains: all of them or one.
struct StoredTensor {
  std::string name;            // model.layers.0.self_attn.q_proj.weight
  std::vector<int64_t> shape;  // of the full tensor on disk
  int64_t dim;                 // the sharded dim of `shape`; 0 if replicated
  bool is_transposed;          // [in, out] on disk
  config::ElementType element_type = config::ElementType::floating_point;

  /// Returns a view of the parameter's local shard, or of a tensor of its shape, in the orientation on disk.
  at::Tensor oriented(const at::Tensor& local) const;
  /// Returns the ranges along `dim` that a rank holds, one per segment: their begin in the stored tensor and
  /// in the oriented shard.
  std::vector<base::ShardRule::Piece> held(int rank) const;
  /// Returns the shape of the held ranges, concatenated.
  std::vector<int64_t> held_shape(int rank) const;
  /// Returns the part of `held` that this rank owns and writes; each element has one owner.
  std::vector<base::ShardRule::Piece> owned(int rank) const;

  base::ShardRule rule = {};  // of the parameter
  size_t first_segment = 0, segments = 0;

 private:
  std::vector<base::ShardRule::Piece> select_segments(std::vector<base::ShardRule::Piece> pieces) const;
};

/// Returns the tensors that store `parameter` in files of `config`'s family. For Llama,
/// `model.layers.0.self_attn.qkv_proj.weight` → q_proj, k_proj, v_proj. For a packed weight, those of all its
/// parts.
std::vector<StoredTensor> stored_tensors(const config::ParameterInfo& parameter,
                                         const config::Config& config);
/// Returns the tensors that store all parameters of a model on `tp` ranks. Errors: those of make_layout.
std::vector<StoredTensor> stored_tensors(const config::Config& config, int tp);

/// Returns the table's entry for `parameter`, except for its use. `config`: of the parameter's model.
config::ParameterInfo info_of(const parallel::Parameter& parameter, const config::Config& config);
/// Returns the tensors that store `parameter` in files of `config`'s family.
std::vector<StoredTensor> stored_tensors(const parallel::Parameter& parameter, const config::Config& config);

/// Returns one part of a packed weight as a parameter [out blocks, in blocks], or [in] if it has no output
/// dim. Its rule gives each rank the blocks that its shard of the weight overlaps.
config::ParameterInfo packed_parameter(const config::ParameterInfo& weight, const config::PackedPart& part,
                                       const config::Config& config);
/// Returns the tensors that store one part of a packed weight.
std::vector<StoredTensor> stored_tensors(const config::ParameterInfo& weight, const config::PackedPart& part,
                                         const config::Config& config);

/// Returns a description for output and the shard index: "heads | kv_heads | kv_heads, dim 0", or "whole on
/// every rank".
std::string rule_text(const StoredTensor& stored);

}  // namespace shardwise::model
