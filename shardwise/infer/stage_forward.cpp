#include "shardwise/infer/stage_forward.h"

#include <ATen/ops/empty.h>

namespace shardwise::infer {

using nn::Invariant;

at::Tensor StageForward::logits(const at::Tensor& ids, const at::Tensor& rows, const nn::Step& step) const {
  const model::Decoder<Invariant> decoder(weights_);
  if (stages() == 1) {
    const auto logits = rows.defined() ? decoder.next_logits(ids, rows, step) : decoder.logits(ids, step);
    return logits.local().select(1, 0);
  }
  const nn::Placed<Invariant> x = decoder.through_blocks(input(ids, step), /*chunk=*/0, step);
  if (!is_last()) {
    pipeline_.send(x.local().contiguous(), pipeline_.rank() + 1);
    return {};
  }
  const auto logits = rows.defined() ? decoder.next_logits_of(x, rows, step) : decoder.logits_of(x, step);
  return logits.local().select(1, 0);
}

nn::Placed<Invariant> StageForward::input(const at::Tensor& ids, const nn::Step& step) const {
  if (pipeline_.rank() == 0) return model::Decoder<Invariant>(weights_).embedded(ids, step);
  at::Tensor x = at::empty({ids.size(0), ids.size(1), weights_.config().hidden_size},
                           at::TensorOptions(weights_.dtype()).device(pipeline_.device()));
  pipeline_.recv_(x, pipeline_.rank() - 1);
  return nn::Placed<Invariant>(x);
}

void StageForward::send(const std::vector<SampledToken>& sampled) const {
  if (stages() == 1) return;
  const at::Tensor host = at::empty({std::ssize(sampled), 2}, at::kDouble);
  double* next = host.mutable_data_ptr<double>();
  for (const SampledToken& token : sampled) {
    *next++ = static_cast<double>(token.id);  // exact below 2^53
    *next++ = token.logprob;
  }
  const at::Tensor message = host.to(pipeline_.device());
  for (int stage = 0; stage + 1 < stages(); ++stage) pipeline_.send(message, stage);
}

std::vector<SampledToken> StageForward::receive(size_t count) const {
  at::Tensor message =
      at::empty({static_cast<int64_t>(count), 2}, at::TensorOptions(at::kDouble).device(pipeline_.device()));
  pipeline_.recv_(message, stages() - 1);
  const at::Tensor host = message.cpu();
  const double* values = host.const_data_ptr<double>();
  std::vector<SampledToken> sampled;
  for (size_t i = 0; i < count; ++i)
    sampled.push_back({static_cast<int64_t>(values[2 * i]), values[2 * i + 1]});
  return sampled;
}

}  // namespace shardwise::infer
