#include "shardwise/plan/workload.h"

#include <c10/util/Exception.h>

#include "shardwise/config/parameters.h"

namespace shardwise::plan {

using base::Split;

namespace {

void check_frozen(const Workload& workload) {
  if (workload.frozen.empty()) return;
  TORCH_CHECK_VALUE(!can_only_be_planned(workload.config),
                    "plan: all parameters of a model that can only be planned must be trained; got ",
                    workload.frozen.size(), " frozen [SW0812]");
  const config::ParameterTable table(workload.config);
  for (const std::string& name : workload.frozen)
    TORCH_CHECK_VALUE(table.contains(name), "plan: frozen parameters must be parameters of the model; got ",
                      name, " [SW0459]");
  TORCH_CHECK_VALUE(workload.frozen.size() < table.size(),
                    "plan: at least one parameter must be trained; got all ", table.size(),
                    " parameters frozen [SW0460]");
}

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
  const bool is_copied = has_dropout || config.positions == config::Positions::learned;
  return layer == 0 && parallelism == Parallelism::tp && !is_copied ? partial_sum_pool()
                                                                    : Pool::private_memory;
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
  check_experts(*this);
  if (split_batch) check_split_batch(*this);
  check_frozen(*this);
}

void Workload::validate_rank(int rank) const {
  validate();
  TORCH_CHECK_VALUE(rank >= 0 && rank < tp, "plan: rank must be in [0, tp); got ", rank, " with tp ", tp,
                    " [SW0467]");
}

RankShard rank_shard(const Workload& workload, int rank) {
  workload.validate_rank(rank);
  const int64_t rows = workload.positions() * workload.batch_size;
  const int64_t local_rows = workload.sequence().range(rank).size() * workload.batch_size;
  const auto [heads, kv_heads, ffn, vocab] = workload.layout();
  return {heads.range(rank).size(),
          kv_heads.range(rank).size(),
          ffn.range(rank).size(),
          vocab.range(rank).size(),
          rows,
          workload.parallelism == Parallelism::tp ? rows : local_rows};
}

}  // namespace shardwise::plan
