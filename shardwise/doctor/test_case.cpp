#include "shardwise/doctor/test_case.h"

#include "shardwise/nn/dropout.h"

namespace shardwise::doctor {

using plan::Parallelism;
using plan::SaveForBackward;

TestCase plain_case(const Tokens& tokens) {
  return {"plain", tokens, nn::LossOptions(static_cast<double>(tokens.labels.numel()))};
}

TestCase training_case(const Tokens& tokens, uint64_t seed) {
  const int64_t s = tokens.labels.size(0), prompt = s / 4;
  const at::Tensor labels = tokens.labels.clone();
  labels.narrow(/*dim=*/0, /*start=*/0, prompt).fill_(nn::kIgnoreIndex);
  nn::LossOptions loss(static_cast<double>(2 * (s - prompt) * labels.size(1)));
  loss.label_smoothing = 0.1;
  loss.z_loss = 1e-2;  // large enough to show in every gradient
  return {.name = "training",
          .tokens = {tokens.ids, labels},
          .loss = loss,
          .dropout = 0.1,
          .attention_dropout = 0.1,
          .key = nn::masks_key(seed, /*step=*/0, /*micro_batch=*/0)};
}

std::string RunConfig::name(int tp) const {
  std::string name = "TP=" + std::to_string(tp) + (parallelism == Parallelism::tp ? "" : "+SP");
  if (save_for_backward == SaveForBackward::gathered) name += ", gathered input saved";
  if (save_for_backward == SaveForBackward::shard) name += ", gathered again in backward";
  if (recompute == plan::Recompute::full) name += ", full recomputation";
  if (recompute == plan::Recompute::selective) name += ", selective recomputation";
  return name;
}

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kDouble ? "fp64" : dtype == at::kFloat ? "fp32" : "bf16";
}

plan::Workload workload_of(const model::Config& config, const TestCase& test_case,
                           const RunConfig& run_config, int tp) {
  return {.config = config,
          .tp = tp,
          .parallelism = run_config.parallelism,
          .sequence_length = test_case.tokens.ids.size(0),
          .batch_size = test_case.tokens.ids.size(1),
          .element_bytes = static_cast<int64_t>(c10::elementSize(run_config.dtype)),
          .save_for_backward = run_config.save_for_backward,
          .recompute = run_config.recompute,
          .has_label_smoothing = test_case.loss.label_smoothing > 0,
          .has_dropout = test_case.dropout > 0};
}

}  // namespace shardwise::doctor
