#include "shardwise/doctor/results.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/comm/gather_values.h"

namespace shardwise::doctor {

using at::Tensor;
using base::ShardRule;
using model::DecoderWeights;
using nn::Stage;

namespace {

/// Elements of one all_reduce, which limits the use of the symmetric heap.
constexpr int64_t kMaxMessage = int64_t{1} << 22;

std::string layer_name(int64_t layer) {
  return "layer " + std::to_string(layer);
}

Label label_of(const Stage& stage, bool is_gradient) {
  switch (stage.kind) {
    case Stage::Kind::embedding:
      return {"embedding", "output", is_gradient};
    case Stage::Kind::attention:
      return {layer_name(stage.layer), "attention output", is_gradient};
    case Stage::Kind::mlp:
      return {layer_name(stage.layer), "output", is_gradient};
    case Stage::Kind::norm:
      return {"final norm", "output", is_gradient};
    case Stage::Kind::logits:
    case Stage::Kind::logits_gradient:
      return {"head", "logits", is_gradient};
  }
  TORCH_INTERNAL_ASSERT(false, "no such stage");
}

int count_differing(bool differs, const comm::Group& group) {
  int count = 0;
  for (const int one : comm::gather_values(static_cast<int>(differs), group)) count += one;
  return count;
}

/// Returns rank 0's copy of a replicated activation, and the number of ranks whose copies differ.
GatheredTensor invariant(const Tensor& local, const comm::Group& group) {
  Tensor first = local.clone();
  group.broadcast_(first, /*root=*/0);
  return {first, count_differing(!first.equal(local), group)};
}

class ResultWalker {
 public:
  ResultWalker(const DecoderWeights& weights, const Trace& trace, const RunConfig& run_config,
               const Visit& visit)
      : weights_(weights), trace_(trace), run_config_(run_config), visit_(visit), group_(weights.group()) {}

  void run() const {
    for (const StageOutput& activation : trace_.activations) show(activation, /*is_gradient=*/false);
    visit_({{"loss", "value"}, at::scalar_tensor(trace_.loss, at::kDouble), count_differing_losses()});
    for (auto one = trace_.activations.rbegin(); one != trace_.activations.rend(); ++one) show_backward(*one);
  }

 private:
  int count_differing_losses() const {
    int differing = 0;
    for (const double loss : comm::gather_values(trace_.loss, group_)) differing += loss != trace_.loss;
    return differing;
  }

  /// Visits the activation's gradient, then those of its parameters. A block's parameters follow its output.
  void show_backward(const StageOutput& activation) const {
    show(activation, /*is_gradient=*/true);
    if (activation.stage.kind == Stage::Kind::attention) return;
    const std::string module = label_of(activation.stage, false).module;
    const nn::UsedParameters& used_parameters = weights_.used_parameters();
    for (auto used = used_parameters.rbegin(); used != used_parameters.rend(); ++used) {
      const parallel::Parameter& parameter = *used->parameter;
      Label label = doctor::label_of(parameter.name);
      if (label.module != module) continue;
      label.is_gradient = true;
      const auto [full, differing] = full_tensor(parameter, parameter.main_grad, group_);
      visit_({label, full.cpu(), differing});
    }
  }

  void show(const StageOutput& activation, bool is_gradient) const {
    const Tensor& local = is_gradient ? activation.gradient : activation.value;
    TORCH_INTERNAL_ASSERT(local.defined(), label_of(activation.stage, is_gradient).text(),
                          " was not recorded");
    const auto [full, differing] = full_activation(local, activation.stage);
    visit_({label_of(activation.stage, is_gradient), full.cpu(), differing});
  }

  GatheredTensor full_activation(const Tensor& local, const Stage& stage) const {
    if (group_.size() == 1) return {local};
    if (stage.kind == Stage::Kind::logits)
      return {group_.all_gather(local, weights_.layout().vocab, nn::kFeature)};
    if (run_config_.parallelism == plan::Parallelism::tp) return invariant(local, group_);
    const int64_t local_length = local.size(nn::kSequence);
    int64_t length = 0;
    for (const int64_t size : comm::gather_values(local_length, group_)) length += size;
    return {group_.all_gather(local, base::Split::even("sequence", length, group_.size()), nn::kSequence)};
  }

  const DecoderWeights& weights_;
  const Trace& trace_;
  const RunConfig& run_config_;
  const Visit& visit_;
  comm::Group group_;
};

/// Sums in place, in chunks of kMaxMessage.
void all_reduce_in_chunks_(const Tensor& full, const comm::Group& group) {
  if (full.numel() == 0) return;
  for (Tensor part : full.view(-1).split(kMaxMessage)) group.all_reduce_(part);
}

/// Returns a full tensor with the elements that this rank owns, zero elsewhere: each element has one owner.
Tensor owned_elements(const parallel::Parameter& parameter, const Tensor& local, int rank) {
  const ShardRule& rule = parameter.rule;
  Tensor full = at::zeros(parameter.global_shape, local.options().requires_grad(false));
  if (rule.is_replicated()) return rank == 0 ? full.copy_(local) : full;
  for (const auto& [global_begin, local_begin, size] : rule.owned_pieces(rank))
    full.narrow(rule.dim, global_begin, size).copy_(local.narrow(rule.dim, local_begin, size));
  return full;
}

bool matches_shard(const Tensor& full, const parallel::Parameter& parameter, const Tensor& local, int rank) {
  const ShardRule& rule = parameter.rule;
  if (rule.is_replicated()) return local.equal(full);
  for (const auto& [global_begin, local_begin, size] : rule.pieces(rank)) {
    if (!local.narrow(rule.dim, local_begin, size).equal(full.narrow(rule.dim, global_begin, size)))
      return false;
  }
  return true;
}

/// Returns the largest absolute value; NaN if `x` has NaN or Inf.
double largest(const Tensor& x) {
  if (x.numel() == 0) return 0;
  const double value = x.abs().max().item<double>();
  return std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN();
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

GatheredTensor full_tensor(const parallel::Parameter& parameter, const Tensor& tensor,
                           const comm::Group& group) {
  const Tensor local = tensor.detach();
  if (group.size() == 1) return {local};
  const Tensor full = owned_elements(parameter, local, group.rank());
  all_reduce_in_chunks_(full, group);
  return {full, count_differing(!matches_shard(full, parameter, local, group.rank()), group)};
}

void for_each_result(const DecoderWeights& weights, const Trace& trace, const RunConfig& run_config,
                     const Visit& visit) {
  ResultWalker(weights, trace, run_config, visit).run();
}

double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kDouble ? 0x1p-53 : dtype == at::kFloat ? 0x1p-24 : 0x1p-8;
}

Difference difference(const Tensor& a, const Tensor& b) {
  TORCH_INTERNAL_ASSERT(a.sizes() == b.sizes(), "shapes differ: ", a.sizes(), " and ", b.sizes());
  const Tensor reference = b.to(at::kDouble);
  return {largest(a.to(at::kDouble) - reference), largest(reference)};
}

double fp64_bound(double scale) {
  return kFp64Tolerance * scale;
}

double rounding_bound(double rounding, double scale, at::ScalarType dtype) {
  const double bound = kTail * std::max(rounding, unit_roundoff(dtype) * scale);
  return scale > 0 ? std::min(bound, kMaxRelativeBound * scale) : bound;
}

}  // namespace shardwise::doctor
