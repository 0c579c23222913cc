#include "shardwise/plan/workload.h"

#include <c10/util/Exception.h>

namespace shardwise::plan {

using base::Split;

namespace {

/// Without sequence parallelism the ranks of tp would send the same tokens to the experts.
void check_experts(const Workload& workload) {
  check_expert_ranks(workload.config, workload.ep);
  TORCH_CHECK_VALUE(
      !workload.config.experts || workload.tp == 1 || workload.parallelism == Parallelism::tp_sp,
      "plan: experts need sequence parallelism if tp is above 1; got tp ", workload.tp,
      " without it [SW0811]");
}

/// The rules of nn/split_batch.h, which this room does not link.
void check_split_batch(const Workload& workload) {
  TORCH_CHECK_VALUE(workload.parallelism == Parallelism::tp && workload.batch_size >= 2 &&
                        !workload.has_dropout && workload.recompute != Recompute::full,
                    "plan: the split-batch schedule needs TP without sequence parallelism, a batch of 2 "
                    "sequences or more, dropout 0, and recompute none or selective; got ",
                    workload.parallelism == Parallelism::tp ? "TP" : "TP+SP", " with ", workload.batch_size,
                    " sequences", workload.has_dropout ? ", dropout" : "",
                    workload.recompute == Recompute::full ? ", recompute full" : "", " [SW0461]");
}

}  // namespace

void check_expert_ranks(const config::Config& config, int64_t ep) {
  const int64_t experts = config.experts ? config.experts->count : 1;
  TORCH_CHECK_VALUE(ep >= 1 && ep <= experts, "plan: ep must be from 1 to the experts of a block, ", experts,
                    "; got ", ep, " [SW0810]");
}

Split Workload::sequence() const {
  return Split::even("sequence", positions(), tp);
}

Pool Workload::block_input_pool(int64_t layer) const {
  const bool is_copied = has_dropout || split_batch || config.positions == config::Positions::learned;
  return layer == 0 && parallelism == Parallelism::tp && !is_copied ? partial_sum_pool()
                                                                    : Pool::private_memory;
}

Workload Workload::half_batch(int half) const {
  Workload workload = *this;
  workload.batch_size = Split::even("batch", batch_size, 2).range(half).size();
  workload.split_batch = false;
  return workload;
}

RequiredByBlock Workload::required_by_block(int64_t layer) const {
  return frozen.empty() ? all_of_block(config) : frozen.required().blocks[layer];
}

RequiredGradients Workload::required_by_embedding() const {
  return frozen.empty() ? all_of_embedding() : frozen.required().embedding;
}

RequiredByHead Workload::required_by_head() const {
  return frozen.empty() ? all_of_head() : frozen.required().head;
}

void Workload::validate() const {
  TORCH_CHECK_VALUE(tp >= 1 && tp <= config.num_attention_heads, "plan: tp must be in [1, query heads]; got ",
                    tp, " with ", config.num_attention_heads, " heads [SW0464]");
  TORCH_CHECK_VALUE(sequence_length >= 1 && batch_size >= 1 && cp >= 1,
                    "plan: sequence length, batch size and cp must be positive; got ", sequence_length, ", ",
                    batch_size, " and ", cp, " [SW0465]");
  TORCH_CHECK_VALUE(element_bytes == 2 || element_bytes == 4 || element_bytes == 8,
                    "plan: element_bytes must be 2, 4 or 8; got ", element_bytes, " [SW0466]");
  TORCH_CHECK_VALUE(
      0 <= blocks().begin && blocks().begin < blocks().end && blocks().end <= config.num_hidden_layers,
      "plan: a stage must be blocks of the model, at least one; got [", blocks().begin, ", ", blocks().end,
      ") of ", config.num_hidden_layers, " [SW0753]");
  const bool may_share = zero == ZeroStage::optimizer || zero == ZeroStage::gradients;
  TORCH_CHECK_VALUE(
      replicas_per_copy == 1 || (may_share && replicas_per_copy >= 1 && dp % replicas_per_copy == 0),
      "plan: replicas must share weights in equal numbers, and split optimizer states and not weights; got ",
      replicas_per_copy, " of ", dp, " that share weights, and ZeRO stage ", static_cast<int>(zero),
      " [SW0870]");
  check_experts(*this);
  if (split_batch) check_split_batch(*this);
  frozen.validate(config);
}

std::vector<Workload> Workload::chunks() const {
  std::vector<Workload> all(1 + later_chunks.size(), *this);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) all[i].stage = later_chunks[i - 1];
    all[i].later_chunks.clear();
  }
  return all;
}

void Workload::validate_rank(int rank) const {
  validate();
  TORCH_CHECK_VALUE(rank >= 0 && rank < tp, "plan: rank must be in [0, tp); got ", rank, " with tp ", tp,
                    " [SW0467]");
}

RankShard rank_shard(const Workload& workload, int rank) {
  workload.validate_rank(rank);
  const int64_t rows = workload.positions() * workload.batch_size;
  const int64_t local_rows =
      base::even_range(workload.positions(), workload.tp, rank).size() * workload.batch_size;
  const auto [heads, kv_heads, ffn, vocab] = config::local_ranges(workload.config, workload.tp, rank);
  return {heads.size(), kv_heads.size(),
          ffn.size(),   vocab.size(),
          rows,         workload.parallelism == Parallelism::tp ? rows : local_rows};
}

}  // namespace shardwise::plan
