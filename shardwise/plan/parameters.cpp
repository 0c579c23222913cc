#include "shardwise/plan/parameters.h"

#include <algorithm>

#include "shardwise/config/parameters.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

using base::ParameterUse;
using config::ParameterInfo;

/// Returns the number of elements along the sharded dim that several ranks hold: rows of KV heads.
int64_t replicated_size(const base::ShardRule& rule) {
  int64_t size = 0;
  for (const auto& [split, unit] : rule.segments) {
    if (split.is_partition()) continue;
    for (int64_t i = 0; i < split.size(); ++i) size += split.holders(i).size() > 1 ? unit : 0;
  }
  return size;
}

/// Returns the number of elements whose gradients are partial sums, if the parameter is trained.
int64_t partial_elements(const ParameterInfo& parameter, const Workload& workload) {
  if (parameter.use == ParameterUse::sharded)
    return replicated_size(parameter.rule) * (parameter.numel() / parameter.shape.at(parameter.rule.dim));
  const bool is_partial =
      parameter.use == ParameterUse::per_head || workload.parallelism == Parallelism::tp_sp;
  return workload.tp > 1 && is_partial ? parameter.numel() : 0;
}

/// Whether a parameter is of all routed experts of a block: their dim is the first one.
bool is_of_experts(const ParameterInfo& parameter) {
  return parameter.shape.size() == 3;
}

base::TensorRows local_rows(const ParameterInfo& parameter, const Workload& workload, int rank) {
  std::vector<int64_t> shape = parameter.shape;
  if (is_of_experts(parameter)) {
    shape[0] = parts_of(shape[0], workload.ep);
  } else {
    shape = parameter.rule.local_shape(std::move(shape), rank);
  }
  int64_t row_elements = 1;
  for (size_t dim = 1; dim < shape.size(); ++dim) row_elements *= shape[dim];
  return {shape[0], row_elements};
}

/// Every parameter outside the blocks is on the first stage or on the last; a tied head is on both.
bool is_on_stage(const ParameterInfo& parameter, const Workload& workload) {
  const auto has_block = [&](const base::Range& run) {
    return run.begin <= *parameter.block && *parameter.block < run.end;
  };
  if (parameter.block)
    return has_block(workload.blocks()) || std::ranges::any_of(workload.later_chunks, has_block);
  const std::string module = config::module_name(parameter.name);
  if (module == "embed_positions") return workload.has_embedding();
  if (module == "embed_tokens")
    return workload.has_embedding() || (workload.has_head() && workload.config.tie_word_embeddings);
  return workload.has_head();
}

}  // namespace

int64_t part_of(const ParameterInfo& parameter, const Workload& workload) {
  if (parameter.block) return *parameter.block + 1;
  const bool is_embedding = config::module_name(parameter.name).starts_with("embed_");
  return is_embedding ? 0 : workload.config.num_hidden_layers + 1;
}

std::vector<LocalParameter> local_parameters(const Workload& workload, int rank) {
  workload.validate_rank(rank);
  std::vector<LocalParameter> parameters;
  for (const ParameterInfo& parameter : config::ParameterTable(workload.config, workload.layout())) {
    if (!is_on_stage(parameter, workload)) continue;
    const bool is_trained = !workload.frozen.contains(parameter.name);
    const bool is_expert = is_of_experts(parameter);
    const base::TensorRows rows = local_rows(parameter, workload, rank);
    const bool is_copy = part_of(parameter, workload) == 0 && !workload.has_embedding();
    parameters.push_back({parameter.name, part_of(parameter, workload), rows, rows.rows * rows.row_elements,
                          is_trained && !is_expert ? partial_elements(parameter, workload) : 0, is_trained,
                          is_copy, is_expert});
  }
  return parameters;
}

namespace {

/// Deals the rows of the trained or of the frozen parameters to the replicas.
std::vector<base::Split> dealt(const Workload& workload, int rank, bool is_trained) {
  const bool by_part = workload.zero >= ZeroStage::gradients;
  std::vector<std::vector<base::TensorRows>> parts(by_part ? static_cast<size_t>(workload.parts()) : 1);
  for (const LocalParameter& parameter : local_parameters(workload, rank))
    if (parameter.is_trained == is_trained && !parameter.is_copy)
      parts[by_part ? size_t(parameter.part) : 0].push_back(parameter.rows);
  std::vector<base::Split> owners;
  for (const std::vector<base::TensorRows>& rows : parts)
    owners.push_back(base::RowRuns::even(rows, workload.dp).elements());
  return owners;
}

}  // namespace

std::vector<base::Split> owned_by_replicas(const Workload& workload, int rank) {
  return dealt(workload, rank, /*is_trained=*/true);
}

std::vector<base::Split> frozen_by_replicas(const Workload& workload, int rank) {
  return dealt(workload, rank, /*is_trained=*/false);
}

}  // namespace shardwise::plan
