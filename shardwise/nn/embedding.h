// Vocabulary-parallel embedding: each rank looks up the ids whose table rows it holds, with zeros for the
// others, and f* or g* sums the results.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// An embedding whose table [v, h] is sharded along the vocabulary.
class VocabParallelEmbedding {
 public:
  /// Allocates the local shard of the table.
  VocabParallelEmbedding(const std::string& name, int64_t hidden_size, const base::Split& vocab,
                         const parallel::Init& init, const comm::Group& group, at::ScalarType dtype);
  /// Uses an existing `table`, which may be quantized. `dtype`: of the output.
  VocabParallelEmbedding(ParameterPtr table, const base::Split& vocab, at::ScalarType dtype);

  /// Returns the embeddings of `ids` on the residual stream.
  /// Shapes: `ids` [s, b] int64, equal on every rank → [s, b, h] I or [s/t, b, h] S<0>.
  /// Forward: all_reduce (I), reduce_scatter (S<0>). Backward: nothing (I), all_gather (S<0>).
  /// Errors: c10::ValueError if an id is outside [0, v).
  template <ResidualStream Stream>
  Placed<Stream> to(const at::Tensor& ids, const Step& step) const;

  /// Returns the table.
  const ParameterPtr& weight() const { return weight_; }
  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const {
    parameters.push_back({weight_, ParameterUse::sharded});
  }

 private:
  at::Tensor look_up(const at::Tensor& ids, int64_t begin, const comm::Group& group) const;

  ParameterPtr weight_;
  base::Split vocab_;
  at::ScalarType dtype_;
};

}  // namespace shardwise::nn
