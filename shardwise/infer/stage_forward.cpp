#include "shardwise/infer/stage_forward.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace shardwise::infer {

using nn::Invariant;
using SequenceSharded = nn::Sharded<nn::kSequence>;

StageForward::StageForward(const std::string& where, const model::DecoderWeights& weights,
                           comm::Group pipeline)
    : weights_(weights), pipeline_(std::move(pipeline)) {
  const bool is_of_stage = weights.stage().size() == 1 &&
                           weights.has_embedding() == (pipeline_.rank() == 0) &&
                           weights.has_head() == is_last();
  TORCH_CHECK_VALUE(is_of_stage, where, ": the weights must be those of stage ", pipeline_.rank(), " of ",
                    pipeline_.size(), ", in one run of blocks; got ", weights.stage().size(),
                    " runs that begin with block ", weights.stage().front().begin, " [SW0879]");
}

at::Tensor StageForward::logits(const at::Tensor& ids, const at::Tensor& rows, const nn::Step& step) const {
  const model::Decoder<Invariant> decoder(weights_);
  if (stages() == 1) {
    const auto logits = rows.defined() ? decoder.next_logits(ids, rows, step) : decoder.logits(ids, step);
    return logits.local().select(1, 0);
  }
  auto x = decoder.through_blocks(input<Invariant>(ids, ids.size(0), step), /*chunk=*/0, step);
  if (!is_last()) {
    send_stream(x.local());
    return {};
  }
  const auto logits = rows.defined() ? decoder.next_logits_of(x, rows, step) : decoder.logits_of(x, step);
  return logits.local().select(1, 0);
}

double StageForward::loss(const at::Tensor& ids, const at::Tensor& labels, const nn::LossOptions& options,
                          const nn::Step& step) const {
  const model::Decoder<SequenceSharded> decoder(weights_);
  if (stages() == 1) return decoder.loss(ids, labels, options, step).local().item<double>();
  auto x = decoder.through_blocks(input<SequenceSharded>(ids, step.local_sequence().size(), step),
                                  /*chunk=*/0, step);
  if (is_last()) return decoder.loss_of(x, labels, options, step).local().item<double>();
  send_stream(x.local());
  return 0;
}

template <nn::ResidualStream Stream>
nn::Placed<Stream> StageForward::input(const at::Tensor& ids, int64_t rows, const nn::Step& step) const {
  if (pipeline_.rank() == 0) return model::Decoder<Stream>(weights_).embedded(ids, step);
  at::Tensor x = at::empty({rows, ids.size(1), weights_.config().hidden_size},
                           at::TensorOptions(weights_.dtype()).device(pipeline_.device()));
  pipeline_.recv_(x, pipeline_.rank() - 1);
  return nn::Placed<Stream>(x);
}

void StageForward::send_stream(const at::Tensor& x) const {
  pipeline_.send(x.contiguous(), pipeline_.rank() + 1);
}

void StageForward::send(const std::vector<double>& results) const {
  if (stages() == 1) return;
  const at::Tensor host = at::empty({std::ssize(results)}, at::kDouble);
  std::ranges::copy(results, host.mutable_data_ptr<double>());
  const at::Tensor message = host.to(pipeline_.device());
  for (int stage = 0; stage + 1 < stages(); ++stage) pipeline_.send(message, stage);
}

std::vector<double> StageForward::receive(size_t count) const {
  at::Tensor message =
      at::empty({static_cast<int64_t>(count)}, at::TensorOptions(at::kDouble).device(pipeline_.device()));
  pipeline_.recv_(message, stages() - 1);
  const at::Tensor host = message.cpu();
  const double* values = host.const_data_ptr<double>();
  return {values, values + count};
}

}  // namespace shardwise::infer
