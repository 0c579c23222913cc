#include "tests/support/planned_run.h"

namespace shardwise::plan {

using testing::Path;

namespace {

/// A model in small: MHA, GQA, few KV heads, MQA, 6 query and 3 KV heads, and what families differ in.
struct Kind {
  const char* name;
  int64_t query, kv;
  void (*set)(model::Config&);
};

void set_biases(model::Config& config) {
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
}

const Kind kKinds[] = {
    {"4 heads", 4, 4, [](model::Config&) {}},
    {"8 over 4 heads, biases", 8, 4, set_biases},
    {"4 over 2 heads, q/k norm", 4, 2, [](model::Config& config) { config.qk_norm = true; }},
    {"5 over 1 heads, biases", 5, 1, set_biases},
    {"6 over 3 heads, biases", 6, 3, set_biases},
    {"4 heads, LayerNorm, GeLU, learned positions, tied", 4, 4,
     [](model::Config& config) {
       set_biases(config);
       config.norm = model::Norm::layer;
       config.activation = model::Activation::gelu_tanh;
       config.positions = model::Positions::learned;
       config.tie_word_embeddings = true;
     }},
};

struct Micro {
  int64_t sequence, element_bytes;
  double dropout;
};

model::Config config_of(const Kind& kind) {
  model::Config config;
  config.vocab_size = 17;
  config.hidden_size = 10;
  config.intermediate_size = 13;
  config.num_hidden_layers = 2;
  config.num_attention_heads = kind.query;
  config.num_key_value_heads = kind.kv;
  config.head_dim = 6;
  config.max_position_embeddings = 16;
  kind.set(config);
  return config;
}

PlannedRun run_of(int ranks, const Kind& kind, Stream stream, Gathered gathered) {
  PlannedRun run;
  run.kind = kind.name;
  run.workload.config = config_of(kind);
  run.workload.tp = ranks;
  run.workload.stream = stream;
  run.workload.gathered = gathered;
  run.workload.batch_size = 2;
  return run;
}

void append_micro_batches(std::vector<PlannedRun>& runs, PlannedRun run, int ranks) {
  for (const Micro& micro : {Micro{7, 4, 0.1}, {7, 2, 0}, {std::max(1, ranks - 1), 8, 0}}) {
    run.workload.sequence_length = micro.sequence;
    run.workload.element_bytes = micro.element_bytes;
    run.dropout = micro.dropout;
    run.workload.smooths_labels = micro.dropout > 0;
    runs.push_back(run);
  }
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
  const char* modes[] = {"", ", selective", ", full"};
  return (workload.stream == Stream::tp ? "TP " : "TP+SP ") + std::to_string(workload.tp) + ", " +
         paths[static_cast<int>(workload.gathered)] + modes[static_cast<int>(workload.recompute)] + ", " +
         kind + ", sequence " + std::to_string(workload.sequence_length) + ", " + c10::toString(dtype()) +
         (dropout > 0 ? ", dropout" : "");
}

std::vector<PlannedRun> runs(int ranks) {
  std::vector<PlannedRun> runs;
  for (const Kind& kind : kKinds) {
    for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
      for (const Gathered gathered : {Gathered::in_place, Gathered::keep, Gathered::again}) {
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
          PlannedRun run = run_of(ranks, kind, stream, gathered);
          run.workload.recompute = recompute;
          append_micro_batches(runs, run, ranks);
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
  step_.recompute = run.workload.recompute;
  weights_.initialise_(1);
  testing::zero_gradients_(weights_);
}

at::Tensor RunningModel::forward() const {
  nn::LossOptions options(batch_.valid_tokens);
  options.label_smoothing = run_.workload.smooths_labels ? 0.1 : 0;
  const auto loss = [&](const auto& model) {
    return model.loss(batch_.ids, batch_.labels, options, step_).local();
  };
  if (run_.workload.stream == Stream::tp) return loss(model::Decoder<nn::Invariant>(weights_));
  return loss(model::Decoder<nn::Sharded<nn::kSequence>>(weights_));
}

}  // namespace shardwise::plan
