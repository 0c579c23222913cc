// The weights of a rank in generation, in bytes as they are stored, block by block.
#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/config/parameters.h"
#include "shardwise/plan/routed_experts.h"

namespace shardwise::plan {

/// A weight as a rank stores it.
struct StoredWeight {
  int64_t bytes = 0;  // in all; of one expert, if it is of experts
  int64_t bits = 0;   // of an element
};

/// Rank 0's weights, which are the largest shards. A quantized weight has a scale of 16 bits for each group
/// of a row, and zero points of its own bits if it is asymmetric; a router is never quantized.
class StoredWeights {
 public:
  /// `element_bytes`: of weights that are not quantized. Errors: c10::ValueError if tp is above the query
  /// heads.
  StoredWeights(const config::Config& config, const ExpertRanks& ranks, int64_t element_bytes);

  /// Returns the bytes of a pipeline stage: its blocks; the first stage has the embeddings, the last one
  /// final norm and head, and a copy of the embedding if it is the head.
  int64_t of_stage(const base::Range& blocks) const;
  /// Returns the bytes that a forward of a stage reads: its blocks', and the head's on the last one. Of the
  /// embeddings it reads a row for each token.
  int64_t read_by_stage(const base::Range& blocks) const;
  /// Returns the weight that a product of a block reads, by the product's name. `has_experts`: whether the
  /// block has them. Errors: std::out_of_range if there is none.
  const StoredWeight& of_product(bool has_experts, const std::string& product) const {
    return products_[has_experts ? 1 : 0].at(product);
  }
  /// Returns the weight of the head.
  const StoredWeight& head() const { return head_; }

 private:
  int64_t of_blocks(const base::Range& blocks) const;
  void add(const config::ParameterInfo& parameter);
  StoredWeight stored(const config::ParameterInfo& parameter, const std::vector<int64_t>& shape) const;
  void add_to_block(const config::ParameterInfo& parameter, const StoredWeight& weight, int64_t count);

  config::Config config_;
  int64_t element_bytes_, held_experts_ = 0, expert_features_ = 0;
  std::vector<int64_t> blocks_;                                  // bytes of each
  std::array<std::map<std::string, StoredWeight>, 2> products_;  // of blocks without and with experts
  StoredWeight head_;
  int64_t embedding_bytes_ = 0, head_bytes_ = 0, tied_bytes_ = 0;  // outside the blocks
};

}  // namespace shardwise::plan
