// Vocabulary-parallel embedding: each rank looks up the ids of its own rows, the sum over ranks is the
// embedding.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(const std::string& name, int64_t hidden_size, const base::Split& vocab,
                         const parallel::Init& init, const comm::Group& group, at::ScalarType dtype);
  /// Of a table [v, h] whose rows `vocab` cuts; what it gives is `dtype`, a quantized table's too.
  VocabParallelEmbedding(ParameterPtr table, const base::Split& vocab, at::ScalarType dtype);

  /// `ids` [s, b] int64, the same on every rank → [s, b, h] I (all_reduce) or [s/t, b, h] S<0>
  /// (reduce_scatter). Backward: nothing; all_gather. Errors: c10::ValueError for an id outside [0, v).
  template <ResidualStream Stream>
  Placed<Stream> to(const at::Tensor& ids, const Step& step) const;

  const ParameterPtr& weight() const { return weight_; }
  void append_parameters(UsedParameters& roles) const { roles.push_back({weight_, ParameterUse::sharded}); }

 private:
  at::Tensor look_up(const at::Tensor& ids, int64_t begin, const comm::Group& group) const;

  ParameterPtr weight_;
  base::Split vocab_;
  at::ScalarType dtype_;
};

}  // namespace shardwise::nn
