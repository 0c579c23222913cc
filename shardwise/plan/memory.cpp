#include "shardwise/plan/memory.h"

#include "shardwise/plan/parameters.h"

namespace shardwise::plan {
namespace {

/// Rows of a column-parallel product's saved input.
int64_t column_input_rows(const Workload& workload, const Share& share) {
  return workload.gathered == Gathered::keep ? share.rows : share.stream_rows;
}

/// A norm keeps its input and one number per row, LayerNorm two.
void append_norm(Entries& entries, const std::string& name, const Workload& workload, const Share& share) {
  const int64_t statistic = share.stream_rows * workload.accumulator_bytes();
  entries.push_back(
      {name + " input", share.stream_rows * workload.config.hidden_size * workload.element_bytes});
  entries.push_back({name + " rstd", statistic});
  if (workload.config.norm == model::Norm::layer) entries.push_back({name + " mean", statistic});
}

void append(Entries& entries, const Entries& more) {
  entries.insert(entries.end(), more.begin(), more.end());
}

}  // namespace

int64_t total(const Entries& entries) {
  int64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.bytes;
  return bytes;
}

int64_t total(const Entries& entries, Pool pool) {
  int64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.pool == pool ? entry.bytes : 0;
  return bytes;
}

Entries read_by_block(const Workload& workload, int rank) {
  const Share share = share_of(workload, rank);
  const int64_t e = workload.element_bytes;
  const int64_t column_input = column_input_rows(workload, share) * workload.config.hidden_size * e;
  const int64_t head = share.rows * workload.config.head_dim * e, ffn = share.rows * share.ffn * e;
  Entries entries;
  append_norm(entries, "norm1", workload, share);
  append(entries, {{"qkv input", column_input, workload.column_input_pool()},
                   {"q", share.heads * head},  // with q/k norm as they are before it
                   {"k", share.kv_heads * head},
                   {"v", share.kv_heads * head},
                   {"attention output", share.heads * head},  // also the output projection's input
                   {"attention lse", share.heads * share.rows * workload.accumulator_bytes()}});
  append_norm(entries, "norm2", workload, share);
  append(entries, {{"mlp input", column_input, workload.column_input_pool()},
                   {workload.config.is_gated() ? "gate and up" : "up", workload.mlp_inputs() * ffn},
                   {"down input", ffn}});
  return entries;
}

Entries saved_by_block(const Workload& workload, int rank) {
  Entries entries = read_by_block(workload, rank);
  if (workload.recompute == Recompute::full) return {entries.front()};
  if (workload.recompute == Recompute::selective) entries.pop_back();
  return entries;
}

Entries saved_by_head(const Workload& workload, int rank) {
  const Share share = share_of(workload, rank);
  const int64_t row = workload.config.hidden_size * workload.element_bytes;
  Entries entries;
  append_norm(entries, "norm", workload, share);
  append(entries, {{"head input", column_input_rows(workload, share) * row, workload.column_input_pool()},
                   {"logits", share.rows * share.vocab * workload.element_bytes},
                   {"loss lse", share.rows * workload.accumulator_bytes()}});
  return entries;
}

int64_t parameters_held(const Workload& workload, int rank) {
  int64_t elements = 0;
  for (const HeldParameter& parameter : held_parameters(workload, rank)) elements += parameter.elements;
  return elements;
}

Entries model_states(const Workload& workload, int rank) {
  const int64_t parameters = parameters_held(workload, rank);
  const bool has_masters = workload.element_bytes < workload.accumulator_bytes();
  return {
      {"weights", parameters * workload.element_bytes},
      {"main gradients", parameters * workload.accumulator_bytes()},
      {"master weights", has_masters ? parameters * workload.accumulator_bytes() : 0},
      {"optimizer moments", 2 * parameters * workload.accumulator_bytes()},
  };
}

}  // namespace shardwise::plan
