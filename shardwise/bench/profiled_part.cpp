#include "shardwise/bench/profiled_part.h"

#include <ATen/ops/randn.h>

namespace shardwise::bench {
namespace {

using at::Tensor;
using plan::Part, plan::PassesOf;
using SequenceShard = nn::Sharded<nn::kSequence>;

/// The model of one block, whose embedding and head are as small as the ranks allow.
config::Config block_alone(const PartShape& shape, int ranks) {
  config::Config c = plan::with_blocks(shape.config, 1);
  c.vocab_size = ranks;
  c.max_position_embeddings = shape.seq_len;
  c.tie_word_embeddings = true;
  return c;
}

/// Returns the same values on every rank.
Tensor random_hidden(const PartShape& shape, uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({shape.seq_len, shape.batch_size, shape.config.hidden_size}, generator).to(shape.dtype);
}

}  // namespace

plan::PartWorkload workload_of(const PartShape& shape, int64_t ranks, bool in_place) {
  plan::Workload workload;
  workload.config = shape.config;
  workload.tp = static_cast<int>(ranks);
  workload.parallelism = shape.is_sequence_parallel ? plan::Parallelism::tp_sp : plan::Parallelism::tp;
  workload.sequence_length = shape.seq_len;
  workload.batch_size = shape.batch_size;
  workload.element_bytes = static_cast<int64_t>(c10::elementSize(shape.dtype));
  workload.column_input_storage =
      in_place ? plan::ColumnInputStorage::shard_in_place : plan::ColumnInputStorage::shard;
  return {shape.part, shape.passes, workload};
}

PartShape local_shape(const PartShape& shape, int64_t ranks) {
  const config::Layout layout = config::make_layout(shape.config, static_cast<int>(ranks));
  PartShape local = shape;
  local.is_sequence_parallel = false;
  local.config.num_attention_heads = layout.heads.range(0).size();
  local.config.num_key_value_heads = layout.kv_heads.range(0).size();
  local.config.intermediate_size = layout.ffn.range(0).size();
  return local;
}

ProfiledPart::ProfiledPart(const PartShape& shape, const comm::Group& group)
    : shape_(shape),
      weights_(block_alone(shape, group.size()), group, shape.dtype),
      step_(group, shape.seq_len) {
  weights_.initialize_(/*seed=*/1);
  x_ = local_part(random_hidden(shape, /*seed=*/1));
  if (shape.passes == PassesOf::forward) return;
  dy_ = local_part(random_hidden(shape, /*seed=*/2));
  for (const nn::UsedParameter& used : parameters()) parallel::zero_grad_(*used.parameter);
  x_.requires_grad_();
}

Tensor ProfiledPart::local_part(const Tensor& full) const {
  if (!shape_.is_sequence_parallel) return full;
  const base::Range rows = step_.local_sequence();
  Tensor part = weights_.group().empty({rows.size(), full.size(1), full.size(2)}, full.scalar_type());
  return part.copy_(full.narrow(nn::kSequence, rows.begin, rows.size()));
}

template <nn::ResidualStream Stream>
nn::Placed<Stream> ProfiledPart::forward(const Tensor& x) const {
  const nn::BlockLayers& block = weights_.blocks().front();
  const nn::Placed<Stream> placed(x);
  if (shape_.part == Part::mlp) return block.mlp(placed, step_).reduced(step_);
  return nn::run_block(block, nn::DeferredReduction<Stream>(placed), step_).reduced(step_);
}

Tensor ProfiledPart::local_output(const Tensor& x) const {
  return shape_.is_sequence_parallel ? forward<SequenceShard>(x).local() : forward<nn::Invariant>(x).local();
}

void ProfiledPart::run() {
  if (shape_.passes == PassesOf::forward) {
    const at::NoGradGuard no_grad;
    local_output(x_);
    return;
  }
  local_output(x_).backward(dy_);
  x_.mutable_grad().reset();
}

Tensor ProfiledPart::output() const {
  const at::NoGradGuard no_grad;
  const Tensor local = local_output(x_);
  return shape_.is_sequence_parallel ? weights_.group().all_gather(local, step_.sequence) : local;
}

nn::UsedParameters ProfiledPart::parameters() const {
  nn::UsedParameters parameters;
  const nn::BlockLayers& block = weights_.blocks().front();
  shape_.part == Part::mlp ? block.mlp.append_parameters(parameters) : block.append_parameters(parameters);
  return parameters;
}

int64_t ProfiledPart::weight_bytes() const {
  int64_t bytes = 0;
  for (const nn::UsedParameter& used : parameters()) bytes += used.parameter->bytes();
  return bytes;
}

}  // namespace shardwise::bench
