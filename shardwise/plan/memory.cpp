#include "shardwise/plan/memory.h"

namespace shardwise::plan {
namespace {

/// Rows of a column-parallel product's saved input.
int64_t column_input_rows(const Workload& workload, const Share& share) {
  return workload.gathered == Gathered::keep ? share.rows : share.stream_rows;
}

struct Parameters {
  int64_t block, embedding, head, norm;
};

Parameters parameters_of(const Workload& workload, int rank) {
  const model::Config& config = workload.config;
  const Share share = share_of(workload, rank);
  const int64_t h = config.hidden_size;
  const int64_t qkv = (share.heads + 2 * share.kv_heads) * config.head_dim;
  const int64_t matrices = h * (qkv + share.heads * config.head_dim + 3 * share.ffn);
  const int64_t attention_bias = (config.qkv_bias ? qkv : 0) + (config.attention_out_bias ? h : 0);
  const int64_t mlp_bias = config.mlp_bias ? 2 * share.ffn + h : 0;
  return {.block = matrices + attention_bias + mlp_bias + 2 * h,
          .embedding = share.vocab * h,
          .head = config.tie_word_embeddings ? 0 : share.vocab * h,
          .norm = h};
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

Entries saved_by_block(const Workload& workload, int rank) {
  const Share share = share_of(workload, rank);
  const int64_t e = workload.element_bytes, accumulator = workload.accumulator_bytes();
  const int64_t stream = share.stream_rows * workload.config.hidden_size * e;
  const int64_t column_input = column_input_rows(workload, share) * workload.config.hidden_size * e;
  const int64_t head = share.rows * workload.config.head_dim * e;
  const int64_t ffn = share.rows * share.ffn * e;
  return {
      {"norm1 input", stream},
      {"norm1 rstd", share.stream_rows * accumulator},
      {"qkv input", column_input, workload.column_input_pool()},
      {"q", share.heads * head},
      {"k", share.kv_heads * head},
      {"v", share.kv_heads * head},
      {"attention output", share.heads * head},  // also the output projection's input
      {"attention lse", share.heads * share.rows * accumulator},
      {"norm2 input", stream},
      {"norm2 rstd", share.stream_rows * accumulator},
      {"gate_up input", column_input, workload.column_input_pool()},
      {"gate and up", 2 * ffn},
      {"down input", ffn},
  };
}

Entries saved_by_head(const Workload& workload, int rank) {
  const Share share = share_of(workload, rank);
  const int64_t row = workload.config.hidden_size * workload.element_bytes;
  return {
      {"norm input", share.stream_rows * row},
      {"norm rstd", share.stream_rows * workload.accumulator_bytes()},
      {"head input", column_input_rows(workload, share) * row, workload.column_input_pool()},
      {"logits", share.rows * share.vocab * workload.element_bytes},
      {"loss lse", share.rows * workload.accumulator_bytes()},
  };
}

int64_t parameters_held(const Workload& workload, int rank) {
  const Parameters parameters = parameters_of(workload, rank);
  return workload.config.num_hidden_layers * parameters.block + parameters.embedding + parameters.head +
         parameters.norm;
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
