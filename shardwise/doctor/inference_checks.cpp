#include "shardwise/doctor/inference_checks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/base/error.h"
#include "shardwise/checkpoint/panel_files.h"
#include "shardwise/doctor/formula.h"
#include "shardwise/doctor/quantization_formula.h"
#include "shardwise/doctor/reference.h"
#include "shardwise/infer/generate.h"

namespace shardwise::doctor {

using at::Tensor;
using config::Config;
using infer::Completion;
using model::DecoderWeights;

namespace {

/// A way to keep the weights.
struct WeightFormat {
  const char* name;
  int64_t bits;        // 0: as stored
  int64_t group_size;  // 0: a scale per row
};
/// Ranks share some of int4's groups, and the last group of a row is shorter than the others.
constexpr WeightFormat kAsStored{"unquantized", 0, 0}, kInt8{"int8", 8, 0}, kInt4{"int4", 4, 8};

/// Returns the config of `config`'s model loaded in a format, with an int8 head and embedding as by default.
Config config_in(const WeightFormat& format, Config config) {
  if (format.bits > 0)
    config.quantization = config::Quantization{.bits = format.bits,
                                               .group_size = format.group_size,
                                               .lm_head = !config.tie_word_embeddings,
                                               .embeddings = true,
                                               .int8_head = true};
  return config;
}

constexpr int64_t kNewTokens = 6;

/// Returns prompts of different lengths.
std::vector<infer::Request> requests_for(const Config& config) {
  std::vector<infer::Request> requests;
  for (const int64_t length : {3, 9, 5}) {
    infer::Request request{.prompt = {}, .max_new_tokens = kNewTokens, .wants_logprobs = true};
    for (int64_t i = 0; i < length; ++i) request.prompt.push_back((i * 37 + length * 11) % config.vocab_size);
    requests.push_back(std::move(request));
  }
  return requests;
}

/// Generates with a smaller batch than there are texts, and fewer rows per forward than the prompts have.
/// Collective.
std::vector<Completion> generated(const DecoderWeights& weights) {
  return infer::generate(weights, requests_for(weights.config()), /*eos_token_ids=*/{},
                         {.sequences = 2, .rows = 8})
      .completions;
}

/// Loads packed weights where the dtype has them. Collective.
std::unique_ptr<DecoderWeights> loaded(const std::filesystem::path& directory, const Config& config,
                                       at::ScalarType dtype, const comm::Group& group) {
  auto weights = std::make_unique<DecoderWeights>(config, group, dtype, model::WeightUse::inference);
  checkpoint::map_weights(directory, *weights);
  return weights;
}

/// Returns the unsharded model in `dtype`, with the values of quantized weights but unpacked.
std::unique_ptr<DecoderWeights> unpacked(const std::filesystem::path& directory, const Config& config,
                                         at::ScalarType dtype) {
  auto weights = std::make_unique<DecoderWeights>(config::dense(config), comm::Group(), dtype);
  checkpoint::load_weights(directory, *weights);
  if (!config.quantization) return weights;
  for (const nn::UsedParameter& used : weights->used_parameters()) {
    const std::string& name = used.parameter->name;
    Tensor value = used.parameter->value.detach();
    if (value.dim() != 2 || name.ends_with("embed_positions.weight")) continue;
    const bool is_outer = name.ends_with("embed_tokens.weight") || name.ends_with("lm_head.weight");
    value.copy_(is_outer
                    ? quantized_values(value, 8, 0)
                    : quantized_values(value, config.quantization->bits, config.quantization->group_size));
  }
  return weights;
}

double logprob_of(const Tensor& row, int64_t token) {
  return (row[token] - row.logsumexp(0)).item<double>();
}

/// The largest deviations of generated tokens from the formulas.
struct TokenErrors {
  double logprob = 0;     // of a log probability; NaN if one is NaN
  double unlikelier = 0;  // by how much a token's logit is below the largest
  double scale = 0;       // the largest logit
  double rounding = 0;    // of a log probability of the unpacked model in the same dtype
};

void raise(double& largest, double value) {
  largest = value <= largest ? largest : value;
}

/// Compares one text's new tokens with the formulas. `rounded` is the unpacked model, null in fp64.
void compare_text(TokenErrors& errors, const std::filesystem::path& directory, const Config& config,
                  const infer::Request& request, const Completion& completion,
                  const DecoderWeights* rounded) {
  std::vector<int64_t> text = request.prompt;
  text.insert(text.end(), completion.token_ids.begin(), completion.token_ids.end() - 1);
  const Tensor ids = at::tensor(text, at::kLong).unsqueeze(/*dim=*/1);
  const Tensor logits = formula_logits(directory, config, ids, /*valid=*/{}).squeeze(/*dim=*/1);
  const Tensor rounded_logits =
      rounded ? logits_of(*rounded, ids, /*valid=*/{}).squeeze(/*dim=*/1).to(at::kDouble) : logits;
  raise(errors.scale, logits.abs().max().item<double>());
  for (size_t i = 0; i < completion.token_ids.size(); ++i) {
    const auto position = static_cast<int64_t>(request.prompt.size() + i) - 1;
    const int64_t token = completion.token_ids[i];
    const Tensor row = logits[position];
    const double logprob = logprob_of(row, token);
    raise(errors.unlikelier, (row.max() - row[token]).item<double>());
    raise(errors.logprob, std::abs(completion.logprobs[i] - logprob));
    raise(errors.rounding, std::abs(logprob_of(rounded_logits[position], token) - logprob));
  }
}

/// Compares generated texts with the formulas. Not collective.
Check check_tokens(const std::filesystem::path& directory, const Config& config,
                   const std::vector<Completion>& completions, const std::string& scope,
                   at::ScalarType dtype) {
  const bool is_fp64 = dtype == at::kDouble;
  const std::unique_ptr<DecoderWeights> rounded = is_fp64 ? nullptr : unpacked(directory, config, dtype);
  const std::vector<infer::Request> requests = requests_for(config);
  TokenErrors errors;
  for (size_t i = 0; i < requests.size(); ++i)
    compare_text(errors, directory, config, requests[i], completions[i], rounded.get());
  const double bound =
      is_fp64 ? fp64_bound(errors.scale) : rounding_bound(errors.rounding, errors.scale, dtype);
  return {"generation", scope, errors.logprob <= bound && errors.unlikelier <= bound,
          fmt::format("log probabilities differ from the formulas' by {:.1e}, tokens from the most likely "
                      "ones by {:.1e}; the bound is {:.1e}",
                      errors.logprob, errors.unlikelier, bound)};
}

bool are_equal(const std::vector<Completion>& a, const std::vector<Completion>& b) {
  return std::ranges::equal(a, b, [](const Completion& x, const Completion& y) {
    return x.token_ids == y.token_ids && x.logprobs == y.logprobs;
  });
}

/// Writes int8 weights as panel files and generates from them. Collective.
Check check_panel_files(const InferenceTest& test, const DecoderWeights& weights,
                        const std::vector<Completion>& expected) {
  const checkpoint::PanelOptions options{.tp = weights.group().size(),
                                         .dtype = dtype_name(test.dtype),
                                         .quantize = kInt8.name,
                                         .group_size = {},
                                         .head = {}};
  Check check{"panel files", fmt::format("{}, {}", kInt8.name, options.dtype), true,
              "tokens and log probabilities are bit-equal to those before writing"};
  checkpoint::write_panel_files(test.checkpoint, test.scratch, weights, options, [](int64_t, int64_t) {});
  try {
    const auto mapped = loaded(test.scratch, weights.config(), test.dtype, weights.group());
    check.passed = are_equal(generated(*mapped), expected);
    if (!check.passed) check.detail = "other tokens or log probabilities than before writing";
  } catch (const base::CollectiveError& error) {  // on every rank
    check.passed = false;
    check.detail = error.what();
  }
  return check;
}

}  // namespace

std::vector<Check> run_inference_checks(const InferenceTest& test, const comm::Group& group) {
  const at::NoGradGuard no_grad;
  std::vector<Check> checks;
  for (const WeightFormat& format : {kAsStored, kInt8, kInt4}) {
    const Config config = config_in(format, config::load_config(test.checkpoint));
    for (const at::ScalarType dtype : {at::kDouble, test.dtype}) {
      const std::string scope = fmt::format("{}, TP={}, {}", format.name, group.size(), dtype_name(dtype));
      const auto weights = loaded(test.checkpoint, config, dtype, group);
      const std::vector<Completion> completions = generated(*weights);
      if (group.rank() == 0)
        checks.push_back(check_tokens(test.checkpoint, config, completions, scope, dtype));
      if (format.bits == kInt8.bits && dtype == test.dtype)
        checks.push_back(check_panel_files(test, *weights, completions));
    }
  }
  return checks;
}

}  // namespace shardwise::doctor
