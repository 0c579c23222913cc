#include "shardwise/doctor/results.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "shardwise/comm/gather_values.h"

namespace shardwise::doctor {

using at::Tensor;
using base::ShardRule;
using model::DecoderWeights;
using nn::Stage;

namespace {

/// Of one message, so that no more than this of a whole tensor lies in shared memory.
constexpr int64_t kMessage = int64_t{1} << 22;  // elements

std::string layer_name(int64_t layer) {
  return "layer " + std::to_string(layer);
}

Label label_of(const Stage& stage, bool is_gradient) {
  switch (stage.kind) {
    case Stage::embedding:
      return {"embedding", "output", is_gradient};
    case Stage::attention:
      return {layer_name(stage.layer), "attention output", is_gradient};
    case Stage::mlp:
      return {layer_name(stage.layer), "output", is_gradient};
    case Stage::norm:
      return {"final norm", "output", is_gradient};
    case Stage::logits:
      return {"head", "logits", is_gradient};
  }
  TORCH_INTERNAL_ASSERT(false, "no such stage");
}

int count_differing(bool differs, const comm::Group& group) {
  int count = 0;
  for (const int one : comm::gather_values(static_cast<int>(differs), group)) count += one;
  return count;
}

/// The stream under TP is the same everywhere: rank 0's, and how many ranks have another.
Whole invariant(const Tensor& local, const comm::Group& group) {
  Tensor first = local.clone();
  group.broadcast_(first, /*root=*/0);
  return {first, count_differing(!first.equal(local), group)};
}

class Walk {
 public:
  Walk(const DecoderWeights& weights, const Pass& pass, const Way& way, const Visit& visit)
      : weights_(weights), pass_(pass), way_(way), visit_(visit), group_(weights.group()) {}

  void run() const {
    for (const Activation& activation : pass_.activations) show(activation, /*is_gradient=*/false);
    visit_({{"loss", "value"}, at::scalar_tensor(pass_.loss, at::kDouble), loss_differs()});
    for (auto one = pass_.activations.rbegin(); one != pass_.activations.rend(); ++one) show_backward(*one);
  }

 private:
  int loss_differs() const {
    int differing = 0;
    for (const double loss : comm::gather_values(pass_.loss, group_)) differing += loss != pass_.loss;
    return differing;
  }

  /// The activation's gradient, then its parameters': a block's behind that of its output.
  void show_backward(const Activation& activation) const {
    show(activation, /*is_gradient=*/true);
    if (activation.stage.kind == Stage::attention) return;
    const std::string where = label_of(activation.stage, false).where;
    const nn::UsedParameters& roles = weights_.roles();
    for (auto role = roles.rbegin(); role != roles.rend(); ++role) {
      const parallel::Parameter& parameter = *role->parameter;
      Label label = doctor::label_of(parameter.name);
      if (label.where != where) continue;
      label.is_gradient = true;
      const auto [whole, differing] = whole_of(parameter, parameter.main_grad, group_);
      visit_({label, whole, differing});
    }
  }

  void show(const Activation& activation, bool is_gradient) const {
    const Tensor& local = is_gradient ? activation.gradient : activation.value;
    TORCH_INTERNAL_ASSERT(local.defined(), label_of(activation.stage, is_gradient).text(), " was not seen");
    const auto [whole, differing] = whole_activation(local, activation.stage);
    visit_({label_of(activation.stage, is_gradient), whole, differing});
  }

  Whole whole_activation(const Tensor& local, const Stage& stage) const {
    if (group_.size() == 1) return {local};
    if (stage.kind == Stage::logits) return {group_.all_gather(local, weights_.layout().vocab, nn::kFeature)};
    if (way_.stream == plan::Stream::tp) return invariant(local, group_);
    const int64_t own = local.size(nn::kSequence);
    int64_t length = 0;
    for (const int64_t size : comm::gather_values(own, group_)) length += size;
    return {group_.all_gather(local, base::Split::even("sequence", length, group_.size()), nn::kSequence)};
  }

  const DecoderWeights& weights_;
  const Pass& pass_;
  const Way& way_;
  const Visit& visit_;
  comm::Group group_;
};

/// Sums in place, a message at a time.
void all_reduce_parts_(const Tensor& whole, const comm::Group& group) {
  if (whole.numel() == 0) return;
  for (Tensor part : whole.view(-1).split(kMessage)) group.all_reduce_(part);
}

/// The whole with this rank's part of it, zero elsewhere: over the ranks each element once.
Tensor owned_part(const parallel::Parameter& parameter, const Tensor& local, int rank) {
  const ShardRule& rule = parameter.rule;
  Tensor whole = at::zeros(parameter.global_shape, local.options().requires_grad(false));
  if (rule.is_replicated()) return rank == 0 ? whole.copy_(local) : whole;
  for (const auto& [global_begin, local_begin, size] : rule.owned_pieces(rank))
    whole.narrow(rule.dim, global_begin, size).copy_(local.narrow(rule.dim, local_begin, size));
  return whole;
}

bool holds_part_of(const Tensor& whole, const parallel::Parameter& parameter, const Tensor& local, int rank) {
  const ShardRule& rule = parameter.rule;
  if (rule.is_replicated()) return local.equal(whole);
  for (const auto& [global_begin, local_begin, size] : rule.pieces(rank)) {
    if (!local.narrow(rule.dim, local_begin, size).equal(whole.narrow(rule.dim, global_begin, size)))
      return false;
  }
  return true;
}

}  // namespace

Label label_of(const std::string& parameter) {
  const std::string layers = "model.layers.";
  if (parameter.starts_with(layers)) {
    const size_t dot = parameter.find('.', layers.size());
    const std::string number = parameter.substr(layers.size(), dot - layers.size());
    return {"layer " + number, parameter.substr(dot + 1)};
  }
  if (parameter.starts_with("model.norm")) return {"final norm", parameter.substr(sizeof "model." - 1)};
  if (parameter.starts_with("lm_head")) return {"head", parameter};
  return {"embedding", parameter.substr(sizeof "model." - 1)};
}

Whole whole_of(const parallel::Parameter& parameter, const Tensor& tensor, const comm::Group& group) {
  const Tensor local = tensor.detach();
  if (group.size() == 1) return {local};
  const Tensor whole = owned_part(parameter, local, group.rank());
  all_reduce_parts_(whole, group);
  return {whole, count_differing(!holds_part_of(whole, parameter, local, group.rank()), group)};
}

void for_each_result(const DecoderWeights& weights, const Pass& pass, const Way& way, const Visit& visit) {
  Walk(weights, pass, way, visit).run();
}

}  // namespace shardwise::doctor
