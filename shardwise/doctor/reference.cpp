#include "shardwise/doctor/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/doctor/formula.h"

namespace shardwise::doctor {

using at::Tensor;
using model::DecoderWeights;
using Valid = std::vector<base::Range>;

namespace {

/// Step size of the finite difference, relative to a parameter's size.
constexpr double kShift = 1e-3;
/// Tolerance of the finite difference, whose error is of fourth order in kShift.
constexpr double kDerivativeTolerance = 1e-6;

const Tensor& result_at(const Results& results, const Label& label) {
  const auto found = results.find(label);
  TORCH_INTERNAL_ASSERT(found != results.end(), label.module, " has no ", label.text());
  return found->second;
}

Tensor value_of(const DecoderWeights& weights, const std::string& name) {
  for (const nn::UsedParameter& used : weights.used_parameters())
    if (used.parameter->name == name) return used.parameter->value.detach();
  TORCH_INTERNAL_ASSERT(false, "no parameter ", name);
}

/// The derivative of the loss along a random direction, of all parameters or of one.
class DirectionalDerivative {
 public:
  DirectionalDerivative(const DecoderWeights& weights, const TestCase& test_case, uint64_t seed)
      : weights_(weights), shifted_(in_dtype(weights, at::kDouble)), test_case_(test_case), seed_(seed) {}

  struct Value {
    double by_gradient = 0, by_difference = 0;
    double scale = 0;  // standard deviation over random directions
    bool agrees() const { return std::abs(by_gradient - by_difference) <= kDerivativeTolerance * scale; }
  };
  /// Returns the derivative with respect to parameter `only`, or to all.
  Value along(std::optional<size_t> only) {
    const double one = loss_at(kShift, only) - loss_at(-kShift, only),
                 two = loss_at(2 * kShift, only) - loss_at(-2 * kShift, only);
    Value value{0, (8 * one - two) / (12 * kShift), 0};
    for (size_t i = 0; i < weights_.used_parameters().size(); ++i) {
      if (only.value_or(i) != i) continue;
      const Tensor products = parameter(i).main_grad * direction(i);
      value.by_gradient += products.sum().item<double>();
      value.scale += products.square().sum().item<double>();
    }
    value.scale = std::sqrt(value.scale);
    return value;
  }

 private:
  const parallel::Parameter& parameter(size_t i) const { return *weights_.used_parameters()[i].parameter; }

  /// Normal, scaled to the parameter's values. Drawn again for each use, because it is as large as the model.
  Tensor direction(size_t i) const {
    const Tensor value = parameter(i).value.detach();
    Tensor random = at::empty(value.sizes(), value.options());
    const double size = value.square().mean().sqrt().item<double>();
    kernels::fill_normal_(random, parameter(i).global_shape, /*dim=*/0, /*pieces=*/{},
                          kernels::RandomKey::of(seed_).fold(i), /*mean=*/0, size > 0 ? size : 0.02);
    return random;
  }

  double loss_at(double shift, std::optional<size_t> only) {
    for (size_t i = 0; i < weights_.used_parameters().size(); ++i) {
      Tensor target = shifted_->used_parameters()[i].parameter->value.detach();
      target.copy_(parameter(i).value.detach());
      if (only.value_or(i) == i) target.add_(direction(i), shift);
    }
    return loss_of(*shifted_, test_case_, {.dtype = at::kDouble});
  }

  const DecoderWeights& weights_;
  std::unique_ptr<DecoderWeights> shifted_;
  const TestCase& test_case_;
  uint64_t seed_;
};

/// Names the last parameter whose gradient is wrong.
std::string wrong_gradient(const DecoderWeights& weights, DirectionalDerivative& derivative) {
  for (size_t i = weights.used_parameters().size(); i-- > 0;) {
    if (derivative.along(i).agrees()) continue;
    const Label label = label_of(weights.used_parameters()[i].parameter->name);
    return fmt::format("the gradient of {} {} is", label.module, label.tensor);
  }
  return "the sum of the gradients is";
}

/// Sequences whose logits are compared with the published formulas.
constexpr int64_t kSequences = 3;

/// Returns different ids for every sequence.
Tensor ids_of(const config::Config& config) {
  const int64_t s = config.max_position_embeddings;
  return (at::arange(s * kSequences, at::kLong) * 37 + 11).remainder(config.vocab_size).view({s, kSequences});
}

/// Valid ranges: all of the first sequence, the end of the second, the middle of the third.
Valid padded(int64_t s) {
  return {{0, s}, {s / 3, s}, {2, s - 2}};
}

/// Returns the largest difference of the logits of tokens, ignoring padding.
Difference largest_difference(const Tensor& logits, const Tensor& formula, const Valid& valid) {
  Difference all;
  for (int64_t i = 0; i < logits.size(1); ++i) {
    const base::Range range = valid.empty() ? base::Range{0, logits.size(0)} : valid[static_cast<size_t>(i)];
    const auto tokens = [&](const Tensor& x) {
      return x.select(/*dim=*/1, i).narrow(0, range.begin, range.size());
    };
    const Difference one = difference(tokens(logits), tokens(formula));
    all.scale = std::max(all.scale, one.scale);
    if (std::isfinite(all.largest) && !(one.largest <= all.largest)) all.largest = one.largest;
  }
  return all;
}

}  // namespace

std::unique_ptr<DecoderWeights> in_dtype(const DecoderWeights& weights, at::ScalarType dtype) {
  auto copy = std::make_unique<DecoderWeights>(weights.config(), weights.group(), dtype);
  for (size_t i = 0; i < weights.used_parameters().size(); ++i)
    copy->used_parameters()[i].parameter->value.detach().copy_(
        weights.used_parameters()[i].parameter->value.detach());
  return copy;
}

Results results_of(const DecoderWeights& weights, const Trace& trace, const RunConfig& run_config) {
  Results results;
  for_each_result(weights, trace, run_config,
                  [&](const Result& result) { results[result.label] = result.full; });
  return results;
}

Check check_parameter_names(const DecoderWeights& weights) {
  const config::ParameterTable& table = weights.table();
  const nn::UsedParameters& used_parameters = weights.used_parameters();
  Check check{"parameters", "", table.size() == used_parameters.size(),
              fmt::format("all {} parameters are in their layers", table.size())};
  for (size_t i = 0; i < std::min(table.size(), used_parameters.size()) && check.passed; ++i) {
    if (used_parameters[i].parameter->name == table[i].name) continue;
    check.passed = false;
    check.detail = fmt::format("found {} in place of {}", used_parameters[i].parameter->name, table[i].name);
  }
  return check;
}

Check check_embedding(const DecoderWeights& weights, const TestCase& test_case, const Results& reference) {
  const Tensor& ids = test_case.tokens.ids;
  Tensor rows = value_of(weights, "model.embed_tokens.weight").index_select(0, ids.flatten());
  rows = rows.view({ids.size(0), ids.size(1), -1});
  if (weights.config().positions == config::Positions::learned)
    rows = rows + value_of(weights, "model.embed_positions.weight").narrow(0, 0, ids.size(0)).unsqueeze(1);
  const bool passed = rows.equal(result_at(reference, {"embedding", "output"}));
  return {"embedding", "", passed,
          passed ? "equal to the rows of its ids" : "differs from the rows of its ids"};
}

Check check_loss(const TestCase& test_case, const Results& reference) {
  const Tensor &logits = result_at(reference, {"head", "logits"}), labels = test_case.tokens.labels.flatten();
  const double smoothing = test_case.loss.label_smoothing;
  const Tensor log_p = logits.log_softmax(-1), lse = logits.logsumexp(-1);
  const Tensor nll = -log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  const Tensor token_loss =
      nll * (1 - smoothing) - log_p.mean(-1) * smoothing + lse.square() * test_case.loss.z_loss;
  const double formula =
      (token_loss * labels.ne(nn::kIgnoreIndex)).sum().item<double>() / test_case.loss.valid_tokens;
  const double loss = result_at(reference, {"loss", "value"}).item<double>();
  const bool passed = std::abs(loss - formula) <= kFp64Tolerance * std::abs(formula);
  return {"loss", test_case.name, passed,
          fmt::format("{:.12g}; {:.12g} by formula from the full logits", loss, formula)};
}

Check check_gradients(const DecoderWeights& weights, const TestCase& test_case, uint64_t seed) {
  DirectionalDerivative derivative(weights, test_case, seed);
  const DirectionalDerivative::Value all = derivative.along(std::nullopt);
  const std::string values =
      fmt::format("{:.10g} by gradients, {:.10g} by finite differences of the loss, scale {:.2g}",
                  all.by_gradient, all.by_difference, all.scale);
  if (all.agrees()) return {"gradients", test_case.name, true, "directional derivative " + values};
  return {"gradients", test_case.name, false,
          wrong_gradient(weights, derivative) + " wrong: directional derivative " + values};
}

Tensor logits_of(const DecoderWeights& weights, const Tensor& ids, const Valid& valid) {
  nn::Step step(weights.group(), ids.size(0), kernels::RandomKey::of(0));
  step.valid = valid;
  return model::Decoder<nn::Invariant>(weights).logits(ids, step).local();
}

Check check_logits(const std::filesystem::path& directory) {
  const at::NoGradGuard no_grad;
  const config::Config config = config::load_config(directory);
  const model::DecoderWeights weights(config, comm::Group(), at::kDouble);
  checkpoint::load_weights(directory, weights);
  const Tensor ids = ids_of(config);
  double largest = 0;
  for (const Valid& valid : {Valid(), padded(ids.size(0))}) {
    const Difference found = largest_difference(logits_of(weights, ids, valid),
                                                formula_logits(directory, config, ids, valid), valid);
    if (!(found.largest <= fp64_bound(found.scale)))
      return {
          "formula", "", false,
          fmt::format("logits{} differ from the published formulas by {:.2e}; the largest logit is {:.2e}",
                      valid.empty() ? "" : " of padded sequences", found.largest, found.scale)};
    largest = std::max(largest, found.largest / found.scale);
  }
  return {"formula", "", true,
          fmt::format("logits in fp64, with and without padding, within {:.0e} of {}'s published formulas",
                      largest, config.model_type)};
}

}  // namespace shardwise::doctor
