#include "shardwise/kernels/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "tests/kernels/support.h"

namespace shardwise::kernels::cross_entropy_test {
namespace {

constexpr int64_t kIgnore = -100;

struct Case {
  int64_t n;
  std::vector<int64_t> shards;  // sizes, in order
};
const std::vector<Case> kCases = {
    {5, {17}}, {7, {9, 8}}, {1, {1, 0, 100}}, {33, {0, 64, 33, 30}}, {3, {1000, 1}}};

at::Tensor labels_of(int64_t n, int64_t vocab) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < n; ++i) labels.push_back(i % 4 == 3 ? kIgnore : i * 7 % vocab);
  return at::tensor(labels, at::kLong);
}

at::Tensor backward(const at::Tensor& logits, const at::Tensor& labels, int64_t begin, const at::Tensor& lse,
                    const LossGradient& gradient) {
  at::Tensor d = logits.clone(at::MemoryFormat::Contiguous);
  cross_entropy_backward_(d, labels, begin, lse, gradient);
  return d;
}

// The loss of a sharded vocabulary, with the reductions over shards done here.
struct Sharded {
  std::vector<at::Tensor> logits;
  std::vector<int64_t> begins;
  at::Tensor labels, lse, losses;
  TokenLoss of_token;

  Sharded(const at::Tensor& unsharded, const Case& c, const TokenLoss& token = {})
      : labels(labels_of(c.n, unsharded.size(1))), of_token(token) {
    int64_t begin = 0;
    for (const int64_t size : c.shards) {
      logits.push_back(unsharded.narrow(1, begin, size));
      begins.push_back(begin);
      begin += size;
    }
    combine();
  }

  /// Every term has the origin of its shard.
  void combine() {
    std::vector<at::Tensor> all_terms;
    at::Tensor target, all;
    for (size_t i = 0; i < logits.size(); ++i) {
      const at::Tensor terms = loss_terms(logits[i], labels, begins[i], of_token);
      const at::Tensor origin = terms[0].masked_fill(terms[0].isinf(), 0);
      const auto add = [](at::Tensor& to, const at::Tensor& part) { to = to.defined() ? to + part : part; };
      all_terms.push_back(terms);
      add(target, terms[2]);
      if (of_token.is_smoothed()) add(all, terms[3] + origin * logits[i].size(1));
    }
    const at::Tensor stacked = at::stack(all_terms);
    lse = log_sums(stacked) + stacked.select(1, 0).amax(0);
    losses = lse - target * of_token.label_weight() + lse.square() * of_token.z_loss;
    if (all.defined()) losses = losses - all * of_token.class_weight();
    losses = losses.masked_fill(labels == kIgnore, 0);
  }

  at::Tensor gradient(double scale) const {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < logits.size(); ++i)
      parts.push_back(backward(logits[i], labels, begins[i], lse, {scale, kIgnore, of_token}));
    return at::cat(parts, 1);
  }
};

int64_t vocab_of(const Case& c) {
  int64_t vocab = 0;
  for (const int64_t size : c.shards) vocab += size;
  return vocab;
}

TEST(CrossEntropy, LossAndGradientEqualUnsharded) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const Case& c : kCases) {
      const at::Tensor logits = random_tensor({c.n, vocab_of(c)}, 1, dtype) * 4;
      const Sharded sharded(logits, c);
      const at::Tensor x = leaf(logits);
      const at::Tensor loss =
          at::cross_entropy_loss(x, sharded.labels, /*weight=*/{}, at::Reduction::Sum, kIgnore);
      (loss * 0.37).backward();
      const at::ScalarType computing = dtype == at::kDouble ? at::kDouble : at::kFloat;
      const double scale = wide(logits).abs().max().item<double>();
      EXPECT_NEAR(sharded.losses.sum().item<double>(), loss.item<double>(),
                  c.n * scale * bound(computing, 64));
      EXPECT_LE((wide(sharded.lse) - at::logsumexp(wide(logits), {1})).abs().max().item<double>(),
                scale * bound(computing, 64));
      EXPECT_LE(relative_error(sharded.gradient(0.37), x.grad()), bound(dtype, 64 * scale));
      EXPECT_EQ(sharded.gradient(1).scalar_type(), dtype);
    }
  }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  const Case c = {6, {5, 12}};
  const at::Tensor logits = random_tensor({6, 17}, 2);
  for (const TokenLoss& token : {TokenLoss{}, {0.2, 0, 17}, {0, 0.3, 17}, {0.2, 0.3, 17}}) {
    const auto loss = [&](const at::Tensor& x) {
      return 0.25 * Sharded(x, c, token).losses.sum().item<double>();
    };
    expect_gradient(loss, logits, Sharded(logits, c, token).gradient(0.25));
  }
}

// Checks label smoothing's contribution to the sums and to the gradient in every element type.
TEST(CrossEntropy, SmoothedLossAndGradientEqualUnsharded) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const Case& c : kCases) {
      const at::Tensor logits = random_tensor({c.n, vocab_of(c)}, 1, dtype) * 4;
      const Sharded sharded(logits, c, {.label_smoothing = 0.1, .vocab = vocab_of(c)});
      const at::Tensor x = leaf(wide(logits));
      const at::Tensor loss =
          at::cross_entropy_loss(x, sharded.labels, /*weight=*/{}, at::Reduction::Sum, kIgnore, 0.1);
      (loss * 0.37).backward();
      const at::ScalarType computing = dtype == at::kDouble ? at::kDouble : at::kFloat;
      const double scale = wide(logits).abs().max().item<double>();
      EXPECT_NEAR(sharded.losses.sum().item<double>(), loss.item<double>(),
                  c.n * scale * bound(computing, 64));
      EXPECT_LE(relative_error(sharded.gradient(0.37), x.grad()), bound(dtype, 64 * scale));
    }
  }
}

TEST(CrossEntropy, IgnoredLabelsHaveZeroLossAndGradient) {
  const at::Tensor logits = random_tensor({8, 33}, 3, at::kBFloat16), labels = labels_of(8, 33);
  const at::Tensor terms = loss_terms(logits, labels, 0);
  const at::Tensor d = backward(logits, labels, 0, terms[0], {1, kIgnore});
  EXPECT_EQ(terms[2][3].item<double>(), 0);
  EXPECT_EQ(d[3].abs().sum().item<double>(), 0);
  EXPECT_GT(d[2].abs().sum().item<double>(), 0);
}

TEST(CrossEntropy, EmptyShardContributesNothing) {
  const at::Tensor logits = at::empty({3, 0}), labels = at::tensor({0, 1, 2}, at::kLong);
  const at::Tensor terms = loss_terms(logits, labels, 0, {.label_smoothing = 0.1, .vocab = 5});
  EXPECT_EQ(terms[0].max().item<float>(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(terms.narrow(0, 1, 3).abs().sum().item<float>(), 0);
  EXPECT_EQ(backward(logits, labels, 0, at::zeros({3}), {1, kIgnore}).sizes(), at::IntArrayRef({3, 0}));
  EXPECT_EQ(loss_terms(at::empty({0, 5}), at::empty({0}, at::kLong), 0).numel(), 0);
}

TEST(CrossEntropy, SumsOfShardsWithoutFiniteLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor terms = at::zeros({3, 3, 2});
  terms.select(1, 0).copy_(at::tensor({-infinity, 1.0f, 2.0f, -infinity, -infinity, -200.0f}).view({3, 2}));
  terms.select(1, 1).copy_(at::tensor({0.0f, 3.0f, 5.0f, 0.0f, 0.0f, 7.0f}).view({3, 2}));
  const at::Tensor sums = log_sums(terms);
  EXPECT_FLOAT_EQ(sums[0].item<float>(), std::log(5.0f));
  EXPECT_FLOAT_EQ(sums[1].item<float>(), std::log(3.0f));
  terms.select(1, 0).fill_(-infinity);
  EXPECT_TRUE(std::isnan(log_sums(terms)[0].item<float>()));
  EXPECT_EQ(log_sums(at::empty({2, 4, 0})).numel(), 0);
}

TEST(CrossEntropy, HandlesMaskedAndNaNLogits) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor logits = at::tensor({-infinity, 2.f, 1.f, nan}).view({2, 2});
  const at::Tensor terms = loss_terms(logits, at::tensor({1, 0}, at::kLong), 0);
  EXPECT_EQ(terms[1][0].item<float>(), 1);
  EXPECT_TRUE(std::isnan(terms[1][1].item<float>()));
}

TEST(CrossEntropy, RejectsMismatchedShapes) {
  const at::Tensor logits = at::zeros({3, 4}), labels = at::zeros({3}, at::kLong), lse = at::zeros({3});
  EXPECT_THROW(loss_terms(at::zeros({3}), labels, 0), c10::ValueError);
  EXPECT_THROW(loss_terms(logits, at::zeros({2}, at::kLong), 0), c10::ValueError);
  EXPECT_THROW(log_sums(at::zeros({3, 2})), c10::ValueError);
  EXPECT_THROW(log_sums(at::zeros({0, 3, 2})), c10::ValueError);
  EXPECT_THROW(log_sums(at::zeros({1, 3, 2}, at::kBFloat16)), c10::ValueError);
  EXPECT_THROW(loss_terms(logits, labels.to(at::kInt), 0), c10::ValueError);
  EXPECT_THROW(backward(logits, labels, 0, at::zeros({4}), {1, kIgnore}), c10::ValueError);
  EXPECT_THROW(backward(logits, labels, 0, lse.to(at::kDouble), {1, kIgnore}), c10::ValueError);
  at::Tensor transposed = at::zeros({4, 3}).t();
  EXPECT_THROW(cross_entropy_backward_(transposed, labels, 0, lse, {1, kIgnore}), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::cross_entropy_test
