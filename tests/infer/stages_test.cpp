// Generation and evaluation over pipeline stages give the results of one rank.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "shardwise/config/stages.h"
#include "shardwise/infer/evaluate.h"
#include "tests/infer/generated.h"
#include "tests/support/covering.h"
#include "tests/support/error_text.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::stages_test {
namespace {

using config::Stages;
using infer::Batching;
using infer::Generated;
using infer::Request;

constexpr int64_t kLayers = 8;

/// A model that 8 ranks can share in every way.
config::Config with_layers(config::Config config) {
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.max_position_embeddings = 64;
  return config;
}

/// More requests than stages, one of them with a prompt of several forwards, with sampling and with rules.
std::vector<Request> requests() {
  std::vector<Request> result{{{3, 16, 0}, 6, {}},
                              {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 9, {.temperature = 0.8, .seed = 1}},
                              {{5}, 12, {.temperature = 1.5, .top_k = 4, .seed = 3}},
                              {{7, 7}, 0, {}},
                              {{1, 2, 1, 2, 1, 2}, 14, {.repetition_penalty = 1.05}},
                              {{9, 9, 9}, 3, {}},
                              {{4, 0}, 8, {}}};
  result.back().rules.no_repeat_ngram_size = 3;
  for (Request& request : result) request.wants_logprobs = true;
  return result;
}

/// A request's number and its new token, in the order of OnToken.
using Reported = std::vector<std::pair<size_t, int64_t>>;

struct Result {
  Generated generated;
  Reported reported;
};

/// Calls `body` on every rank of the stages, with its stage's weights.
void on_stages(const config::Config& config, const Tensors& full, const Stages& stages, int tp,
               at::ScalarType dtype,
               const std::function<void(const comm::Mesh&, const model::DecoderWeights&)>& body) {
  const int ranks = static_cast<int>(stages.pp) * tp;
  on_mesh(
      ranks,
      [&](const comm::Group& world, const comm::Mesh::Connect& connect) {
        return comm::Mesh({{"pp", static_cast<int>(stages.pp)}, {"tp", tp}}, world.rank(), ranks, connect);
      },
      [&](const comm::Mesh& mesh) {
        const model::DecoderWeights weights(
            config, mesh.group("tp"), dtype, model::WeightUse::training,
            config::layers_of(stages, config.num_hidden_layers, mesh.coordinate("pp")));
        load_slices_(weights, full);
        body(mesh, weights);
      });
}

/// Generates over `tp` ranks of each stage. OnToken ends request 2 with its fourth token. Returns the result,
/// which all ranks must share, as they must the order of the tokens.
Result over_stages(const config::Config& config, const Tensors& full, const Stages& stages, int tp,
                   const Batching& batching = {}, at::ScalarType dtype = at::kDouble) {
  const int ranks = static_cast<int>(stages.pp) * tp;
  std::vector<Generated> results(size_t(ranks), Generated{});
  std::vector<Reported> reported(size_t(ranks), Reported{});
  on_stages(config, full, stages, tp, dtype,
            [&](const comm::Mesh& mesh, const model::DecoderWeights& weights) {
              const auto rank = static_cast<size_t>(mesh.rank());
              int of_request_2 = 0;
              results[rank] = infer::generate(weights, mesh.group("pp"), requests(), config.eos_token_id,
                                              batching, [&](size_t request, int64_t id) {
                                                reported[rank].push_back({request, id});
                                                return request != 2 || ++of_request_2 < 4;
                                              });
            });
  expect_same_on_all(results);
  for (const Reported& one : reported) EXPECT_EQ(one, reported[0]);
  return {results[0], reported[0]};
}

void expect_same_tokens(const Generated& actual, const Generated& expected) {
  for (size_t i = 0; i < expected.completions.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    const auto& [ids, logprobs, reason] = expected.completions[i];
    EXPECT_EQ(actual.completions[i].token_ids, ids);
    EXPECT_EQ(actual.completions[i].finish_reason, reason);
    ASSERT_EQ(actual.completions[i].logprobs.size(), logprobs.size());
    for (size_t token = 0; token < logprobs.size(); ++token)
      EXPECT_NEAR(actual.completions[i].logprobs[token], logprobs[token], 1e-9);
  }
}

class InferenceOverStages : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(InferenceOverStages, EveryMeshHasTheTokensOfOneRank) {
  for (const auto& [name, small] : variants()) {
    const config::Config config = with_layers(small);
    const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
    const Result expected = over_stages(config, weights, {}, /*tp=*/1);
    for (int64_t pp = 1; pp <= kLayers; ++pp) {
      for (int tp = 1; pp * tp <= 8; ++tp) {
        SCOPED_TRACE(::testing::Message() << name << ", pp " << pp << ", tp " << tp);
        const Result result = over_stages(config, weights, {.pp = pp}, tp);
        expect_same_tokens(result.generated, expected.generated);
        EXPECT_EQ(result.generated.timings.prompt_tokens, expected.generated.timings.prompt_tokens);
      }
    }
  }
}

/// The options that a run over stages can have.
Space space() {
  Space space;
  space.add("stages", {"2", "3", "4", "1 and 7 layers", "3, 1 and 4 layers"});
  space.add("tp", {"1", "2"});
  space.add("model", {"plain", "a window", "q/k norm", "learned positions", "tied"});
  space.add("sequences", {"1", "2", "3", "16"});
  space.add("rows", {"4", "512"});
  space.add("drafted", {"0", "3"});
  space.add("cache", {"of the model", "int8"});
  space.add("end tokens", {"none", "some"});
  return space;
}

Stages stages_of(int index) {
  const std::vector<Stages> all{
      {.pp = 2}, {.pp = 3}, {.pp = 4}, {.pp = 2, .layers = {1, 7}}, {.pp = 3, .layers = {3, 1, 4}}};
  return all.at(size_t(index));
}

TEST_F(InferenceOverStages, EveryTripleOfOptionsHasTheTokensOfOneRank) {
  const Space options = space();
  std::vector<std::pair<std::string, config::Config>> models = variants();
  models.push_back({"tied", small_config()});
  models.back().second.tie_word_embeddings = true;
  for (const Combination& c : covering(options, /*strength=*/3, /*seed=*/1)) {
    SCOPED_TRACE(options.name(c));
    config::Config config = with_layers(models.at(size_t(c[2])).second);
    if (c[7] == 1) config.eos_token_id = {0, 4, 8};
    const Tensors weights = random_weights(config, /*seed=*/7, at::kDouble);
    Batching batching{.sequences = std::vector<int64_t>{1, 2, 3, 16}[size_t(c[3])],
                      .rows = c[4] == 0 ? 4 : 512,
                      .drafted = c[5] == 0 ? 0 : 3};
    if (c[6] == 1) batching.cache_dtype = at::kChar;
    const Result expected = over_stages(config, weights, {}, /*tp=*/1, batching);
    const Result result = over_stages(config, weights, stages_of(c[0]), c[1] + 1, batching);
    expect_same_tokens(result.generated, expected.generated);
  }
}

TEST_F(InferenceOverStages, ReportsTokensInOneOrderAndStopsWhenAsked) {
  const config::Config config = with_layers(small_config());
  const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
  const Result result = over_stages(config, weights, {.pp = 3}, /*tp=*/2);
  EXPECT_EQ(result.generated.completions[2].finish_reason, infer::FinishReason::stop);
  EXPECT_EQ(result.generated.completions[2].token_ids.size(), 4u);
  EXPECT_TRUE(result.generated.completions[3].token_ids.empty());
  std::vector<Ids> by_request(requests().size());
  for (const auto& [request, id] : result.reported) by_request[request].push_back(id);
  for (size_t i = 0; i < by_request.size(); ++i)
    EXPECT_EQ(by_request[i], result.generated.completions[i].token_ids);
}

/// A sequence alone has the same forwards, whose ops are those of one rank.
TEST_F(InferenceOverStages, ASequenceAloneHasTheBitsOfOneRank) {
  const config::Config config = with_layers(small_config());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensors weights = random_weights(config, /*seed=*/5, dtype);
    const Batching one{.sequences = 1};
    const Result expected = over_stages(config, weights, {}, /*tp=*/1, one, dtype);
    const Result result = over_stages(config, weights, {.pp = 4}, /*tp=*/1, one, dtype);
    for (size_t i = 0; i < requests().size(); ++i) {
      EXPECT_EQ(result.generated.completions[i].token_ids, expected.generated.completions[i].token_ids);
      EXPECT_EQ(result.generated.completions[i].logprobs, expected.generated.completions[i].logprobs);
    }
  }
}

/// Returns every rank's evaluation of a text, with and without caches, and what it reported on the way.
struct Evaluated {
  std::vector<double> nlls;
  Ids reported;
};

std::vector<Evaluated> evaluated(const config::Config& config, const Tensors& full, const Stages& stages,
                                 int tp) {
  Ids text;
  for (int64_t i = 0; i < 43; ++i) text.push_back((5 * i * i + 3 * i) % config.vocab_size);
  std::vector<Evaluated> by_rank(size_t(stages.pp * tp));
  on_stages(config, full, stages, tp, at::kDouble,
            [&](const comm::Mesh& mesh, const model::DecoderWeights& weights) {
              Evaluated& of_rank = by_rank[size_t(mesh.rank())];
              for (const std::optional<at::ScalarType> cache :
                   {std::optional<at::ScalarType>(), std::optional(at::kDouble), std::optional(at::kChar)}) {
                const infer::Evaluation evaluation = infer::evaluate(
                    weights, mesh.group("pp"), text, {.length = 5, .batch_size = 3, .cache_dtype = cache},
                    [&](int64_t predicted) { of_rank.reported.push_back(predicted); });
                EXPECT_EQ(evaluation.predicted, std::ssize(text) - 1);
                of_rank.nlls.push_back(evaluation.nll);
              }
            });
  return by_rank;
}

TEST_F(InferenceOverStages, EvaluationIsThatOfOneRank) {
  for (const auto& [name, small] : variants()) {
    const config::Config config = with_layers(small);
    const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
    const Evaluated expected = evaluated(config, weights, {}, /*tp=*/1)[0];
    for (const auto& [pp, tp] : {std::pair(2, 1), std::pair(2, 3), std::pair(3, 2), std::pair(8, 1)}) {
      SCOPED_TRACE(::testing::Message() << name << ", pp " << pp << ", tp " << tp);
      for (const Evaluated& of_rank : evaluated(config, weights, {.pp = pp}, tp)) {
        EXPECT_EQ(of_rank.reported, expected.reported);
        for (size_t i = 0; i < expected.nlls.size(); ++i)
          EXPECT_NEAR(of_rank.nlls[i], expected.nlls[i], 1e-10);
      }
    }
  }
}

TEST_F(InferenceOverStages, RefusesTheWeightsOfAnotherStage) {
  const config::Config config = with_layers(small_config());
  const model::DecoderWeights first(config, comm::Group(), at::kFloat, model::WeightUse::training, {{0, 4}});
  EXPECT_EQ(
      test::error_text([&] { infer::generate(first, requests(), {}); }),
      "generate: the weights must be those of stage 0 of 1, in one run of blocks; got 1 runs that begin "
      "with block 0");
  const model::DecoderWeights interleaved(config, comm::Group(), at::kFloat, model::WeightUse::training,
                                          {{0, 2}, {2, 8}});
  EXPECT_EQ(
      test::error_text([&] { infer::generate(interleaved, requests(), {}); }),
      "generate: the weights must be those of stage 0 of 1, in one run of blocks; got 2 runs that begin "
      "with block 0");
}

}  // namespace
}  // namespace shardwise::testing::stages_test
