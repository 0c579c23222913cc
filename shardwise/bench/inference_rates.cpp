#include "shardwise/bench/inference_rates.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/bench/generation.h"
#include "shardwise/bench/probes.h"
#include "shardwise/plan/inference_plan.h"

namespace shardwise::bench {
namespace {

using plan::Rate;

/// With those around which other code multiplies (quant/product.cpp, kernels/product.cpp).
const std::vector<int64_t> kRows = {1, 2, 4, 5, 8, 16, 32, 64, 65, 128, 512};
constexpr int64_t kFeatures = 2048;   // of a weight that takes far longer than the start of a product
constexpr int64_t kFewFeatures = 64;  // of one that does not
constexpr int64_t kReadMegabytes[] = {1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256};
constexpr auto kSharing = static_cast<int64_t>(plan::CachedAttentionRates::kQueries);  // query heads of a key
constexpr int64_t kOne = 0;  // bytes in turn: every call uses the same weight or cache

const WeightFormat kBf16{"bf16", at::kBFloat16};
const WeightFormat kInt8{"int8", at::kBFloat16, quant::Format{.bits = 8}};
const WeightFormat kInt4{"int4", at::kBFloat16, quant::Format{.bits = 4, .group_size = 128}};

/// The rate of products once they have started, which takes them `start` seconds.
Rate measure_rate(const WeightFormat& format, int64_t bytes_in_turn, double start, const std::string& source,
                  Measurements& measurements) {
  const WeightMeasured measured = measurements.of_products(
      fmt::format("{} products of inference, weights from {}", format.name,
                  bytes_in_turn == kOne ? "a cache" : "memory"),
      {{{"", kFeatures, kFeatures}}, {format}, kRows, measurements.seconds(), bytes_in_turn});
  std::vector<Rate::Point> points;
  for (const RowsMeasured& one : measured.rows) {
    const auto rows = static_cast<double>(one.rows);
    const double seconds = seconds_of(one.product), running = std::max(seconds - start, seconds / 2);
    points.push_back({rows, 2.0 * kFeatures * kFeatures * rows / running});
  }
  return Rate(points, source);
}

plan::ReadRates measure_products(const WeightFormat& format, double start, const std::string& source,
                                 Measurements& measurements) {
  return {measure_rate(format, kBeyondCaches, start, source, measurements),
          measure_rate(format, kOne, start, source, measurements)};
}

plan::ReadRates measure_attention(int64_t queries, const std::string& source, Measurements& measurements) {
  const auto rate = [&](int64_t bytes_in_turn) {
    return measure_sizes(cached_attention_calls(queries, bytes_in_turn), /*calls=*/1, measurements)
        .take(0, source);
  };
  return {rate(kBeyondCaches), rate(kOne)};
}

double measure_start(Measurements& measurements) {
  const WeightMeasured measured = measurements.of_products(
      "the smallest product of inference",
      {{{"", kFewFeatures, kFewFeatures}}, {kBf16}, {1}, measurements.seconds(), kOne});
  return seconds_of(measured.rows.front().product);
}

/// A tensor that is read again and again.
SizedCalls reading_of(int64_t megabytes) {
  parallel::Parameter read;
  read.value = at::zeros({megabytes << 20}, at::kByte);
  return {fmt::format("reading {} MB", megabytes),
          {[read] { read_once(read); }},
          {static_cast<double>(megabytes << 20)}};
}

Makers reading_calls() {
  Makers list;
  for (const int64_t megabytes : kReadMegabytes) list.push_back([=] { return reading_of(megabytes); });
  return list;
}

/// A model whose operations take next to no time.
config::Config small_model(int64_t ranks) {
  config::Config config = config::preset("tiny");
  config.head_dim = 32;
  config.num_attention_heads = config.num_key_value_heads = std::max<int64_t>(2, ranks);
  config.hidden_size = config.intermediate_size = config.head_dim * config.num_attention_heads;
  config.vocab_size = 256;
  config.num_hidden_layers = 16;
  return config;
}

}  // namespace

void measure_blocks_(plan::Machine& machine, Measurements& measurements) {
  constexpr int64_t kContext = 32, kTexts[] = {1, 9};
  const comm::Group& group = measurements.group();
  const config::Config config = small_model(group.size());
  model::DecoderWeights weights(config, group, at::kBFloat16, model::WeightUse::inference);
  weights.initialize_(/*seed=*/1);
  const std::vector<double> seconds = measurements.of_tokens("a token of a small model", weights,
                                                             {{kTexts[0], kContext}, {kTexts[1], kContext}});
  double per_block[2];
  for (int i = 0; i < 2; ++i) {
    const plan::InferenceTask task{.config = config,
                                   .ranks = group.size(),
                                   .prompt_tokens = kContext,
                                   .new_tokens = 1,
                                   .texts = kTexts[i]};
    const double planned = plan::evaluate(task, {.tp = group.size()}, machine).token.total();
    per_block[i] = std::max(0.0, seconds[i] - planned) / static_cast<double>(config.num_hidden_layers);
  }
  machine.inference->seconds_per_text =
      std::max(0.0, per_block[1] - per_block[0]) / static_cast<double>(kTexts[1] - kTexts[0]);
  machine.inference->seconds_per_block = std::max(0.0, per_block[0] - machine.inference->seconds_per_text);
}

size_t inference_measurements() {
  constexpr size_t kFormats = 3, kPlaces = 2, kQueries = 2, kStart = 1, kModel = 1;
  return kFormats * kPlaces + kStart + kQueries * kPlaces * cached_attention_calls(1, kOne).size() +
         reading_calls().size() + kModel;
}

plan::InferenceRates measure_inference(const std::string& source, Measurements& measurements) {
  const double start = measure_start(measurements);
  return {.bf16 = measure_products(kBf16, start, source, measurements),
          .int8 = measure_products(kInt8, start, source, measurements),
          .int4 = measure_products(kInt4, start, source, measurements),
          .cached_attention = {measure_attention(1, source, measurements),
                               measure_attention(kSharing, source, measurements)},
          .reading = measure_sizes(reading_calls(), /*calls=*/1, measurements).take(0, source),
          .seconds_per_product = start};
}

}  // namespace shardwise::bench
