#include "shardwise/doctor/task.h"

#include "shardwise/nn/dropout.h"

namespace shardwise::doctor {

using plan::SaveForBackward;
using plan::Stream;

Task plain_task(const Tokens& tokens) {
  return {"plain", tokens, nn::LossOptions(static_cast<double>(tokens.labels.numel()))};
}

Task training_task(const Tokens& tokens, uint64_t seed) {
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

std::string Way::name(int tp) const {
  std::string name = "TP=" + std::to_string(tp) + (stream == Stream::tp ? "" : "+SP");
  if (save_for_backward == SaveForBackward::gathered) name += ", gathered input kept";
  if (save_for_backward == SaveForBackward::shard) name += ", gathered again";
  if (recompute == plan::Recompute::full) name += ", full recomputation";
  if (recompute == plan::Recompute::selective) name += ", selective recomputation";
  return name;
}

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kDouble ? "fp64" : dtype == at::kFloat ? "fp32" : "bf16";
}

plan::Workload workload_of(const model::Config& config, const Task& task, const Way& way, int tp) {
  return {.config = config,
          .tp = tp,
          .stream = way.stream,
          .sequence_length = task.tokens.ids.size(0),
          .batch_size = task.tokens.ids.size(1),
          .element_bytes = static_cast<int64_t>(c10::elementSize(way.dtype)),
          .save_for_backward = way.save_for_backward,
          .recompute = way.recompute,
          .smooths_labels = task.loss.label_smoothing > 0,
          .has_dropout = task.dropout > 0};
}

}  // namespace shardwise::doctor
