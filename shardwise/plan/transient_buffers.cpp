#include "shardwise/plan/transient_buffers.h"

#include <algorithm>

#include "shardwise/base/loss_chunks.h"
#include "shardwise/base/weight_gradient_rows.h"

namespace shardwise::plan {

Allocations concat(Allocations allocations, const Allocations& more) {
  allocations.insert(allocations.end(), more.begin(), more.end());
  return allocations;
}

int64_t TransientBuffers::largest_rows() const {
  return is_sequence_sharded()
             ? base::largest_weight_gradient_rows(workload_.sequence(), workload_.batch_size)
             : sizes_.shard().rows;
}

Allocation TransientBuffers::copied_rows(bool is_needed) const {
  const base::Split sequence = workload_.sequence();
  const bool has_runs = is_sequence_sharded() && std::ssize(base::weight_gradient_ranks(
                                                     sequence, workload_.batch_size)) < workload_.tp;
  return {
      "copied rows of a run of ranks",
      is_needed && has_runs ? largest_rows() * workload_.config.hidden_size * workload_.element_bytes : 0};
}

int64_t TransientBuffers::wgrad_operands(int64_t rows, int64_t out, int64_t in) const {
  constexpr int64_t kPackedOutputs = 128;  // that kernels/bf16_product.cpp packs at a time, per thread
  if (workload_.element_bytes >= 4) return 0;
  const int64_t copied = workload_.wgrad_operand_bytes == 2 ? std::min(out, kPackedOutputs) : out;
  return rows * (copied + in) * workload_.wgrad_operand_bytes;
}

Allocations TransientBuffers::row_forward() const {
  return {{"row-parallel partial sum", sizes_.full_hidden(), workload_.partial_sum_pool()},
          {"row-parallel output", is_sequence_sharded() ? sizes_.local_hidden() : 0}};
}

Allocations TransientBuffers::reduced_output() const {
  return {{"row-parallel output", sizes_.local_hidden(),
           is_sequence_sharded() ? Pool::private_memory : workload_.partial_sum_pool()},
          {"output after dropout", workload_.has_dropout ? sizes_.local_hidden() : 0}};
}

Allocations TransientBuffers::reduced_gradient() const {
  return {{"norm output gradient", sizes_.local_hidden(),
           is_sequence_sharded() ? Pool::private_memory : workload_.partial_sum_pool()}};
}

Allocations TransientBuffers::norm_backward() const {
  return concat(reduced_gradient(), {{"norm input gradient", sizes_.local_hidden()}});
}

Allocations TransientBuffers::column_backward(int64_t out, const RequiredGradients& required) const {
  const bool gathers =
      required.weight && is_sequence_sharded() && workload_.column_input_storage == ColumnInputStorage::shard;
  return {
      {"output gradient", sizes_.features(out)},
      {"partial input gradient", required.input ? sizes_.full_hidden() : 0, workload_.partial_sum_pool()},
      {"gathered input", gathers ? sizes_.full_hidden() : 0},
      copied_rows(required.weight && workload_.column_input_storage == ColumnInputStorage::shard_in_place),
      {"wgrad operands",
       required.weight ? wgrad_operands(largest_rows(), out, workload_.config.hidden_size) : 0}};
}

Allocations TransientBuffers::loss_chunk(int64_t vocab, const RequiredGradients& required) const {
  const int64_t rows = std::min(largest_rows(), base::kLossChunkRows), h = workload_.config.hidden_size;
  const bool gathers =
      is_sequence_sharded() && workload_.column_input_storage != ColumnInputStorage::shard_in_place;
  return {{"head input", sizes_.local_hidden(), workload_.column_input_pool()},
          {"gathered input", gathers ? sizes_.full_hidden() : 0},
          copied_rows(workload_.column_input_storage == ColumnInputStorage::shard_in_place),
          {"logits of a chunk", rows * vocab * workload_.element_bytes},
          {"partial input gradient", required.input ? sizes_.full_hidden() : 0, workload_.partial_sum_pool()},
          {"wgrad operands", required.weight ? wgrad_operands(rows, vocab, h) : 0}};
}

Allocations TransientBuffers::loss_gradient(const RequiredGradients& required) const {
  if (!required.input) return {};
  return {{"head input", sizes_.local_hidden(), workload_.column_input_pool()},
          {"partial input gradient", sizes_.full_hidden(), workload_.partial_sum_pool()},
          {"head input gradient", is_sequence_sharded() ? sizes_.local_hidden() : 0}};
}

Allocations TransientBuffers::residual_gradient(bool is_kept, std::string_view name) const {
  return {{name, is_kept ? sizes_.local_hidden() : 0}};
}

Allocations TransientBuffers::row_backward(int64_t in, const RequiredGradients& required,
                                           bool keeps_residual) const {
  const bool in_place = workload_.partial_sum_pool() == Pool::symmetric_heap,
             is_masked = workload_.has_dropout;
  const bool gathers = is_sequence_sharded() && (required.input || required.weight);
  const int64_t dx = required.input ? sizes_.features(in) : 0;
  const int64_t copies =
      required.weight ? wgrad_operands(largest_rows(), workload_.config.hidden_size, in) : 0;
  // Under sequence parallelism the input's gradient comes first and both are live; otherwise the weight's.
  const bool is_sharded = is_sequence_sharded();
  Allocation gathered{"gathered residual stream gradient", gathers ? sizes_.full_hidden() : 0,
                      workload_.partial_sum_pool()};
  if (in_place) gathered.name = "staged residual stream gradient";
  if (in_place && gathers) gathered.bytes = sizes_.local_hidden();
  return concat(residual_gradient(keeps_residual || !is_masked),
                {{"masked gradient", is_masked ? sizes_.local_hidden() : 0},
                 gathered,
                 {"input gradient", is_sharded || dx >= copies ? dx : 0},
                 copied_rows(required.weight && in_place),
                 {"wgrad operands", is_sharded || copies > dx ? copies : 0}});
}

}  // namespace shardwise::plan
