#include "shardwise/doctor/truth.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>

#include "shardwise/doctor/bound.h"
#include "shardwise/model/config_tensors.h"

namespace shardwise::doctor {

using at::Tensor;
using model::DecoderWeights;

namespace {

/// One step of the difference quotient, relative to a parameter's size.
constexpr double kShift = 1e-3;
/// Of the quotient: what its fourth order in kShift leaves, with room.
constexpr double kQuotient = 1e-6;

const Tensor& at_label(const Results& results, const Label& label) {
  const auto found = results.find(label);
  TORCH_INTERNAL_ASSERT(found != results.end(), label.where, " has no ", label.text());
  return found->second;
}

Tensor value_of(const DecoderWeights& weights, const std::string& name) {
  for (const nn::UsedParameter& role : weights.roles())
    if (role.parameter->name == name) return role.parameter->value.detach();
  TORCH_INTERNAL_ASSERT(false, "no parameter ", name);
}

/// The loss along a random direction, of all parameters or of one.
class Slope {
 public:
  Slope(const DecoderWeights& weights, const Task& task, uint64_t seed)
      : weights_(weights), shifted_(in_dtype(weights, at::kDouble)), task_(task), seed_(seed) {}

  struct Found {
    double by_gradient = 0, by_difference = 0;
    double scale = 0;  // of gradients along random directions
    bool holds() const { return std::abs(by_gradient - by_difference) <= kQuotient * scale; }
  };
  /// Of `only`, or of all.
  Found along(std::optional<size_t> only) {
    const double one = loss_at(kShift, only) - loss_at(-kShift, only),
                 two = loss_at(2 * kShift, only) - loss_at(-2 * kShift, only);
    Found found{0, (8 * one - two) / (12 * kShift), 0};
    for (size_t i = 0; i < weights_.roles().size(); ++i) {
      if (only.value_or(i) != i) continue;
      const Tensor terms = parameter(i).main_grad * direction(i);
      found.by_gradient += terms.sum().item<double>();
      found.scale += terms.square().sum().item<double>();
    }
    found.scale = std::sqrt(found.scale);
    return found;
  }

 private:
  const parallel::Parameter& parameter(size_t i) const { return *weights_.roles()[i].parameter; }

  /// Normal, of the size of the parameter's values; drawn again each time, for it is as large as the model.
  Tensor direction(size_t i) const {
    const Tensor value = parameter(i).value.detach();
    Tensor drawn = at::empty(value.sizes(), value.options());
    const double size = value.square().mean().sqrt().item<double>();
    kernels::fill_normal_(drawn, parameter(i).global_shape, /*dim=*/0, /*pieces=*/{},
                          kernels::RandomKey::of(seed_).fold(i), /*mean=*/0, size > 0 ? size : 0.02);
    return drawn;
  }

  double loss_at(double shift, std::optional<size_t> only) {
    for (size_t i = 0; i < weights_.roles().size(); ++i) {
      Tensor target = shifted_->roles()[i].parameter->value.detach();
      target.copy_(parameter(i).value.detach());
      if (only.value_or(i) == i) target.add_(direction(i), shift);
    }
    return loss_of(*shifted_, task_, {.dtype = at::kDouble});
  }

  const DecoderWeights& weights_;
  std::unique_ptr<DecoderWeights> shifted_;
  const Task& task_;
  uint64_t seed_;
};

/// The first parameter from the end whose gradient is wrong.
std::string wrong_gradient(const DecoderWeights& weights, Slope& slope) {
  for (size_t i = weights.roles().size(); i-- > 0;) {
    if (slope.along(i).holds()) continue;
    const Label label = label_of(weights.roles()[i].parameter->name);
    return fmt::format("the gradient of {} {} is", label.where, label.tensor);
  }
  return "their sum is";
}

}  // namespace

std::unique_ptr<DecoderWeights> in_dtype(const DecoderWeights& weights, at::ScalarType dtype) {
  auto copy = std::make_unique<DecoderWeights>(weights.config(), weights.group(), dtype);
  for (size_t i = 0; i < weights.roles().size(); ++i)
    copy->roles()[i].parameter->value.detach().copy_(weights.roles()[i].parameter->value.detach());
  return copy;
}

Results results_of(const DecoderWeights& weights, const Pass& pass, const Way& way) {
  Results results;
  for_each_result(weights, pass, way, [&](const Result& result) { results[result.label] = result.whole; });
  return results;
}

Audit audit_names(const DecoderWeights& weights) {
  const auto tensors = model::whole_tensors(weights.config());
  const nn::UsedParameters& roles = weights.roles();
  Audit audit{"parameters", "", tensors.size() == roles.size(),
              fmt::format("{} parameters, each in its layer", tensors.size())};
  for (size_t i = 0; i < std::min(tensors.size(), roles.size()) && audit.holds; ++i) {
    if (roles[i].parameter->name == tensors[i].name) continue;
    audit.holds = false;
    audit.detail = fmt::format("{} stands where {} belongs", roles[i].parameter->name, tensors[i].name);
  }
  return audit;
}

Audit audit_embedding(const DecoderWeights& weights, const Task& task, const Results& truth) {
  const Tensor& ids = task.tokens.ids;
  Tensor rows = value_of(weights, "model.embed_tokens.weight").index_select(0, ids.flatten());
  rows = rows.view({ids.size(0), ids.size(1), -1});
  if (weights.config().positions == model::Positions::learned)
    rows = rows + value_of(weights, "model.embed_positions.weight").narrow(0, 0, ids.size(0)).unsqueeze(1);
  const bool holds = rows.equal(at_label(truth, {"embedding", "output"}));
  return {"embedding", "", holds, holds ? "the rows of its ids" : "other rows than those of its ids"};
}

Audit audit_loss(const Task& task, const Results& truth) {
  const Tensor &logits = at_label(truth, {"head", "logits"}), &labels = task.tokens.labels;
  const double smoothing = task.loss.label_smoothing;
  const Tensor log_p = logits.log_softmax(-1), lse = logits.logsumexp(-1);
  const Tensor nll = -log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  const Tensor of_token =
      nll * (1 - smoothing) - log_p.mean(-1) * smoothing + lse.square() * task.loss.z_loss;
  const double formula =
      (of_token * labels.ne(nn::kIgnoreIndex)).sum().item<double>() / task.loss.valid_tokens;
  const double loss = at_label(truth, {"loss", "value"}).item<double>();
  const bool holds = std::abs(loss - formula) <= kExactly * std::abs(formula);
  return {"loss", task.name, holds,
          fmt::format("{:.12g}, {:.12g} by formula over the whole logits", loss, formula)};
}

Audit audit_gradients(const DecoderWeights& weights, const Task& task, uint64_t seed) {
  Slope slope(weights, task, seed);
  const Slope::Found all = slope.along(std::nullopt);
  const std::string values =
      fmt::format("{:.10g} by the gradients, {:.10g} by differences of the loss, of {:.2g}", all.by_gradient,
                  all.by_difference, all.scale);
  if (all.holds()) return {"gradients", task.name, true, "slope " + values};
  return {"gradients", task.name, false,
          wrong_gradient(weights, slope) + " not that of the loss: slope " + values};
}

}  // namespace shardwise::doctor
