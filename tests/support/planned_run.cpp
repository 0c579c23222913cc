#include "tests/support/planned_run.h"

namespace shardwise::plan {

using testing::Path;

namespace {

struct Heads {
  int64_t query, kv;
};

struct Micro {
  int64_t sequence, element_bytes;
  double dropout;
};

model::Config config_with(Heads heads) {
  model::Config config;
  config.vocab_size = 17;
  config.hidden_size = 10;
  config.intermediate_size = 13;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads.query;
  config.num_key_value_heads = heads.kv;
  config.head_dim = 6;
  config.max_position_embeddings = 16;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = heads.query > 4;
  return config;
}

PlannedRun run_of(int ranks, Heads heads, Stream stream, Gathered gathered) {
  PlannedRun run;
  run.workload.config = config_with(heads);
  run.workload.tp = ranks;
  run.workload.stream = stream;
  run.workload.gathered = gathered;
  run.workload.batch_size = 2;
  return run;
}

}  // namespace

at::ScalarType PlannedRun::dtype() const {
  return workload.element_bytes == 8 ? at::kDouble : workload.element_bytes == 4 ? at::kFloat : at::kBFloat16;
}

testing::Stream PlannedRun::stream() const {
  return workload.stream == Stream::tp ? testing::Stream::tp : testing::Stream::tp_sp;
}

Path PlannedRun::path() const {
  return workload.gathered == Gathered::in_place ? Path::symmetric
         : workload.gathered == Gathered::keep   ? Path::keep
                                                 : Path::again;
}

std::string PlannedRun::name() const {
  const char* paths[] = {"in place", "kept", "gathered again"};
  const model::Config& config = workload.config;
  return (workload.stream == Stream::tp ? "TP " : "TP+SP ") + std::to_string(workload.tp) + ", " +
         paths[static_cast<int>(workload.gathered)] + ", " + std::to_string(config.num_attention_heads) +
         " over " + std::to_string(config.num_key_value_heads) + " heads, sequence " +
         std::to_string(workload.sequence_length) + ", " + c10::toString(dtype()) +
         (dropout > 0 ? ", dropout" : "");
}

std::vector<PlannedRun> runs(int ranks) {
  std::vector<PlannedRun> runs;
  for (const Heads heads : {Heads{4, 4}, {8, 4}, {4, 2}, {5, 1}, {6, 3}}) {
    for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
      for (const Gathered gathered : {Gathered::in_place, Gathered::keep, Gathered::again}) {
        PlannedRun run = run_of(ranks, heads, stream, gathered);
        for (const Micro& micro : {Micro{7, 4, 0.1}, {7, 2, 0}, {std::max(1, ranks - 1), 8, 0}}) {
          run.workload.sequence_length = micro.sequence;
          run.workload.element_bytes = micro.element_bytes;
          run.dropout = micro.dropout;
          runs.push_back(run);
        }
      }
    }
  }
  return runs;
}

RunningModel::RunningModel(const PlannedRun& run, const comm::Group& group)
    : run_(run),
      weights_(run.workload.config, group, run.dtype()),
      batch_(testing::random_batch(run.workload.config, run.workload.sequence_length, run.workload.batch_size,
                                   1)),
      step_(testing::make_step(group, run.path(), run.workload.sequence_length, kernels::RandomKey::of(1),
                               run.dropout)) {
  weights_.initialise_(1);
  testing::zero_gradients_(weights_);
}

at::Tensor RunningModel::forward() const {
  const auto loss = [&](const auto& model) {
    return model.loss(batch_.ids, batch_.labels, batch_.valid_tokens, step_).local();
  };
  if (run_.workload.stream == Stream::tp) return loss(model::Decoder<nn::Invariant>(weights_));
  return loss(model::Decoder<nn::Sharded<nn::kSequence>>(weights_));
}

}  // namespace shardwise::plan
