// Sampling from logits on the emulated device: the tokens that the host samples from whole rows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <limits>

#include "shardwise/infer/sharded_sampler.h"
#include "shardwise/kernels/logit_keys.h"
#include "tests/device/device.h"
#include "tests/support/error_text.h"
#include "tests/support/tensors.h"

namespace shardwise::device_test {
namespace {

using infer::Candidate;
using infer::SamplingInput;

/// Logits of few different values, so that many are equal.
at::Tensor logits_with_ties(int64_t n, int64_t v, uint64_t seed, at::ScalarType dtype) {
  return (testing::random_tensor({n, v}, seed, at::kFloat) * 3).round().to(dtype);
}

std::vector<Candidate> sorted(std::vector<Candidate> candidates) {
  std::ranges::sort(candidates, {}, &Candidate::id);
  return candidates;
}

void expect_equal(const std::vector<Candidate>& actual, const std::vector<Candidate>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].id, expected[i].id);
    EXPECT_EQ(actual[i].logit, expected[i].logit);
    EXPECT_EQ(actual[i].penalized, expected[i].penalized);
  }
}

const std::vector<int64_t> kText{0, 3, 3, 9, 21, 30, 33}, kOther{12};

/// Requests whose penalties and rules change logits within and outside the shards of this test.
std::vector<SamplingInput> inputs() {
  return {{&kText, {}},
          {&kText, {.repetition_penalty = 3}},
          {&kOther, {.repetition_penalty = 0.5}},
          {&kText, {.repetition_penalty = 2}, false, {.forced = {}, .forbidden = {4, 5, 21, 5}}},
          {&kOther, {}, false, {.forced = {8, 22, 40}, .forbidden = {22}}}};
}

TEST(DeviceSampling, CandidatesAreThoseOfWholeRows) {
  const at::Device device = testing::on_device().device();
  const std::vector<SamplingInput> all = inputs();
  std::vector<std::vector<int64_t>> changed;
  for (const SamplingInput& input : all) changed.push_back(infer::changed_ids(input));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t v : {1, 6, 17, 64}) {
      const at::Tensor rows = logits_with_ties(std::ssize(all), v, static_cast<uint64_t>(v), dtype);
      for (const int ranks : {1, 2, 3}) {
        const auto vocab = base::Split::even("vocab", v, ranks);
        for (const int64_t count : {1, 2, 5, 100}) {
          SCOPED_TRACE(::testing::Message() << dtype << ", " << v << " on " << ranks << ", best " << count);
          std::vector<at::Tensor> keys;
          for (int rank = 0; rank < ranks; ++rank) {
            const base::Range shard = vocab.range(rank);
            const at::Tensor local = rows.narrow(1, shard.begin, shard.size()).to(device);
            keys.push_back(infer::chosen_keys(local, shard, count, changed).cpu());
          }
          const auto known = infer::known_logits(at::stack(keys), vocab);
          for (size_t i = 0; i < all.size(); ++i) {
            expect_equal(sorted(infer::best_candidates(known[i], size_t(count), all[i])),
                         sorted(infer::best_candidates(rows[int64_t(i)], 0, size_t(count), all[i])));
          }
        }
      }
    }
  }
}

TEST(DeviceSampling, ReportsNaNAsTheHostDoes) {
  const comm::Group group = testing::on_device();
  const auto vocab = base::Split::even("vocab", 16, 1);
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    at::Tensor rows = logits_with_ties(1, 16, 1, at::kFloat);
    rows[0][5] = nan;
    const std::vector<SamplingInput> greedy{{&kOther, {}, false, {.forced = {3}, .forbidden = {}}}};
    const auto error_on = [&](const at::Tensor& logits) {
      return test::error_text<c10::Error>([&] { infer::sample_tokens(logits, vocab, greedy, group); });
    };
    EXPECT_NE(error_on(rows), "");
    EXPECT_EQ(error_on(rows.to(group.device())), error_on(rows));
  }
}

// The host waits for the device once for all sequences, and fetches no row.
TEST(DeviceSampling, WaitsOnce) {
  const comm::Group group = testing::on_device();
  const auto vocab = base::Split::even("vocab", 64, 1);
  const std::vector<SamplingInput> all = inputs();
  const at::Tensor rows = logits_with_ties(std::ssize(all), 64, 1, at::kBFloat16).to(group.device());
  const int64_t before = testing::emulated_reads();
  infer::sample_tokens(rows, vocab, all, group);
  EXPECT_EQ(testing::emulated_reads() - before, 1);
}

TEST(DeviceSampling, HasNoKeysOnTheHost) {
  EXPECT_EQ(
      test::error_text<c10::ValueError>([] { kernels::logit_keys(logits_with_ties(1, 2, 1, at::kFloat)); }),
      "logit_keys: logits must be on a device with kernels; got cpu");
}

}  // namespace
}  // namespace shardwise::device_test
