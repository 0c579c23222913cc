#include "shardwise/kernels/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "shardwise/kernels/dropout.h"
#include "tests/kernels/attention_reference.h"

namespace shardwise::kernels::attention_test {
namespace {

TEST(Attention, MatchesFp64ReferenceForEveryGrouping) {
  const Threads threads(1);
  for (const Case& c : kCases) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(::testing::Message()
                     << dtype << " s " << c.s << " kv " << at::IntArrayRef(c.kv_of_head) << causal);
        check_case(c, dtype, {.kv_of_head = c.kv_of_head, .causal = causal});
      }
    }
  }
}

// Blocks have 64 rows. The windows are one token, less than a block, one block, several blocks and all
// tokens; the lengths are just below and above multiples of a block.
TEST(AttentionWindow, MatchesFp64Reference) {
  const Threads threads(1);
  for (const int64_t s : {1, 2, 63, 64, 65, 129, 200, 301}) {
    for (const int64_t window : {1, 2, 31, 33, 64, 65, 100, 130, 400}) {
      const Case c = {1, s, 6, 2, {0, 1, 1}};
      AttentionOptions options = causal_of(c);
      options.window = window;
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << dtype << " s " << s << " window " << window);
        check_case(c, dtype, options);
      }
    }
  }
}

// Forward of bf16 by AMX goes through keys in blocks of 256. Keys that grow with the position raise a query's
// largest score in every block.
TEST(Attention, MatchesFp64ReferenceBeyondABlockOfKeys) {
  const Threads threads(1);
  for (const int64_t s : {255, 256, 257, 290, 513, 800}) {
    for (const int64_t d : {7, 40, 64, 128}) {
      const Case c = {1, s, d, 2, {0, 1, 1}};
      for (const std::optional<int64_t>& window : {std::optional<int64_t>(), std::optional<int64_t>(270)}) {
        for (const double growth : {0.0, 20.0}) {
          SCOPED_TRACE(::testing::Message() << s << " d " << d << " " << window.value_or(0) << " " << growth);
          Qkv in = inputs(c, at::kBFloat16);
          in.k.mul_(at::arange(s).div(s / growth).add(1).unsqueeze(-1));
          const AttentionOptions options = {.kv_of_head = c.kv_of_head, .window = window};
          const Reference expected = reference({wide(in.q), wide(in.k), wide(in.v)}, c, options);
          const AttentionResult got = attention(in, options);
          EXPECT_LE(relative_error(got.out, expected.out), attention_bound(at::kBFloat16));
          const at::Tensor difference = (wide(got.lse) - expected.lse).abs();
          EXPECT_LE(difference.div(expected.lse.abs() + 1).max().item<double>(),
                    4 * attention_bound(at::kFloat));
        }
      }
    }
  }
}

// Backward of bf16 by AMX has blocks of 128 keys and 128 queries.
TEST(Attention, GradientsMatchFp64ReferenceBeyondABlock) {
  const Threads threads(1);
  for (const int64_t s : {127, 128, 129, 161, 290}) {
    for (const int64_t d : {7, 40, 64, 128}) {
      const Case c = {1, s, d, 2, {0, 1, 1}};
      for (const std::optional<int64_t>& window : {std::optional<int64_t>(), std::optional<int64_t>(100)}) {
        for (const double p : {0.0, 0.3}) {
          SCOPED_TRACE(::testing::Message() << s << " d " << d << " " << window.value_or(0) << " " << p);
          AttentionOptions options = {.kv_of_head = c.kv_of_head, .window = window};
          if (p > 0) options.dropout = {p, RandomKey::of(7), 2, 9};
          check_case(c, at::kBFloat16, options);
          options.valid = {{s / 3, s - 1}};
          check_case(c, at::kBFloat16, options);
        }
      }
      check_case(c, at::kBFloat16, {.kv_of_head = c.kv_of_head, .causal = false});
    }
  }
}

// Adding a number to all scores of a query changes only its lse.
TEST(Attention, MatchesFp64ReferenceWhereAllScoresAreLow) {
  const Case c = {1, 300, 64, 2, {0, 1, 1}};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Qkv in = inputs(c, dtype);
    in.q.select(-1, 0).fill_(100);
    in.k.select(-1, 0).fill_(-100);
    const Reference expected = reference({wide(in.q), wide(in.k), wide(in.v)}, c, causal_of(c));
    const AttentionResult got = attention(in, causal_of(c));
    EXPECT_LE(expected.lse.max().item<double>(), -1000);
    const at::ScalarType sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const double score_error = 1250 * 64 * roundoff(sums);  // of 64 terms, whose sum is about -1250
    EXPECT_LE(relative_error(got.out, expected.out), attention_bound(dtype) + score_error) << dtype;
    EXPECT_LE(relative_error(got.lse, expected.lse), attention_bound(dtype)) << dtype;
  }
}

// A NaN is not lost in the maxima, and reaches no query to which its key is masked.
TEST(Attention, NaNReachesTheQueriesThatAttendToIt) {
  const Case c = {1, 300, 64, 1, {0}};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t key : {0, 40, 255, 256, 299}) {
      Qkv in = inputs(c, dtype);
      in.k.select(2, key).fill_(NAN);
      const at::Tensor is_nan = attention(in, causal_of(c)).out.isnan().any(-1).flatten();
      EXPECT_FALSE(is_nan.narrow(0, 0, key).any().item<bool>()) << dtype << " key " << key;
      EXPECT_TRUE(is_nan.narrow(0, key, c.s - key).all().item<bool>()) << dtype << " key " << key;
    }
  }
}

TEST(AttentionWindow, CoveringAllTokensIsBitwiseEqualToNoWindow) {
  const Case c = {2, 101, 4, 2, {0, 1, 1}};
  const Qkv in = inputs(c, at::kFloat);
  AttentionOptions windowed = causal_of(c);
  windowed.window = 101;
  const AttentionResult plain = attention(in, causal_of(c)), got = attention(in, windowed);
  EXPECT_TRUE(same_bits(got.out, plain.out));
  const at::Tensor d_out = random_tensor({101, 2, 12}, 4, at::kFloat);
  EXPECT_TRUE(same_bits(attention_backward(d_out, in, got, windowed).k,
                        attention_backward(d_out, in, plain, causal_of(c)).k));
}

// Zero times NaN is NaN: if masked keys were multiplied, the result would be NaN.
TEST(AttentionWindow, DoesNotReadBlocksOutside) {
  const Case c = {1, 320, 8, 1, {0, 0}};
  AttentionOptions options = causal_of(c);
  options.window = 40;
  const Qkv in = inputs(c, at::kFloat);
  const AttentionResult expected = attention(in, options);
  Qkv spoilt = {in.q, in.k.clone(), in.v.clone()};
  for (const at::Tensor& t : {spoilt.k, spoilt.v}) t.narrow(2, 0, 64).fill_(NAN);
  const at::Tensor out = attention(spoilt, options).out;
  EXPECT_TRUE(same_bits(out.narrow(0, 192, 128), expected.out.narrow(0, 192, 128)));
  EXPECT_TRUE(out.narrow(0, 0, 64).isnan().all().item<bool>());
  const at::Tensor d_out = random_tensor({320, 1, 16}, 4, at::kFloat);
  at::Tensor spoilt_d_out = d_out.clone();
  spoilt_d_out.narrow(0, 256, 64).fill_(NAN);
  const Qkv grads = attention_backward(spoilt_d_out, in, expected, options);
  const Qkv expected_grads = attention_backward(d_out, in, expected, options);
  EXPECT_TRUE(same_bits(grads.k.narrow(2, 0, 128), expected_grads.k.narrow(2, 0, 128)));
  EXPECT_TRUE(same_bits(grads.v.narrow(2, 0, 128), expected_grads.v.narrow(2, 0, 128)));
}

// The last n queries give the last n rows of the full result, for n = 1 and n just below and above blocks
// of 64.
TEST(AttentionPast, QueriesAreTheLastPositions) {
  const Threads threads(1);
  for (const Case& c : {Case{2, 9, 8, 2, {0, 0, 1}}, {1, 65, 6, 2, {0, 1, 1}}, {2, 200, 32, 1, {0, 0}}}) {
    for (const int64_t n : {int64_t{1}, int64_t{2}, c.s / 2, c.s - 1}) {
      for (const std::optional<int64_t>& window : {std::optional<int64_t>(), std::optional<int64_t>(5)}) {
        for (const at::ScalarType dtype : kDtypes) {
          SCOPED_TRACE(::testing::Message()
                       << dtype << " s " << c.s << " n " << n << " " << window.value_or(0));
          const AttentionOptions options = {.kv_of_head = c.kv_of_head, .window = window};
          const Qkv in = inputs(c, dtype);
          const Reference expected = reference({wide(in.q), wide(in.k), wide(in.v)}, c, options);
          const AttentionResult got = attention({in.q.narrow(2, c.s - n, n), in.k, in.v}, options);
          const double limit = attention_bound(dtype);
          EXPECT_LE(relative_error(got.out, expected.out.narrow(0, c.s - n, n)), limit);
          const at::Tensor lse = expected.lse.narrow(2, c.s - n, n);
          EXPECT_LE((wide(got.lse) - lse).abs().max().item<double>(), 4 * limit);
        }
      }
    }
  }
}

TEST(AttentionPast, RequiresNoPaddingAndNoDropout) {
  const Case c = {1, 4, 2, 1, {0}};
  const Qkv in = inputs(c, at::kFloat), last = {in.q.narrow(2, 2, 2), in.k, in.v};
  AttentionOptions padded = causal_of(c), dropped = causal_of(c);
  padded.valid = {{0, 2}};
  dropped.dropout = {0.5, RandomKey::of(7), 0, 1};
  EXPECT_THROW(attention(last, padded), c10::ValueError);
  EXPECT_THROW(attention(last, dropped), c10::ValueError);
  EXPECT_THROW(attention({in.q, in.k.narrow(2, 0, 3), in.v.narrow(2, 0, 3)}, causal_of(c)), c10::ValueError);
  const AttentionResult got = attention(last, causal_of(c));
  EXPECT_THROW(attention_backward(got.out, last, got, causal_of(c)), c10::ValueError);
}

TEST(AttentionPadding, MatchesFp64Reference) {
  const Threads threads(1);
  const Case c = {6, 70, 6, 2, {0, 1, 1}};
  for (const bool causal : {true, false}) {
    for (const std::optional<int64_t>& window : {std::optional<int64_t>(), std::optional<int64_t>(9)}) {
      if (window && !causal) continue;
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << dtype << causal << window.value_or(0));
        check_case(c, dtype,
                   {.kv_of_head = c.kv_of_head, .causal = causal, .window = window, .valid = kPadded});
      }
    }
  }
}

// For any values in the padding, tokens are bitwise equal to those of the sequence without padding, and
// padding is zero.
TEST(AttentionPadding, IsNeverRead) {
  const Case c = {6, 70, 6, 2, {0, 1, 1}};
  const AttentionOptions options = {.kv_of_head = c.kv_of_head, .window = 20, .valid = kPadded};
  const Qkv in = inputs(c, at::kFloat);
  const at::Tensor d_out = random_tensor({70, 6, 18}, 4, at::kFloat);
  for (int64_t i = 0; i < 6; ++i) {
    for (const auto& [begin, end] : {base::Range{0, kPadded[i].begin}, base::Range{kPadded[i].end, 70}}) {
      for (const at::Tensor& t : {in.q, in.k, in.v}) t.select(0, i).narrow(1, begin, end - begin).fill_(NAN);
      d_out.select(1, i).narrow(0, begin, end - begin).fill_(NAN);
    }
  }
  const AttentionResult got = attention(in, options);
  const Qkv grads = attention_backward(d_out, in, got, options);
  for (const at::Tensor& t : {got.out, got.lse, grads.q, grads.k, grads.v})
    EXPECT_FALSE(t.isnan().any().item<bool>());
  for (int64_t i = 0; i < 6; ++i) {
    const auto [begin, end] = kPadded[i];
    const int64_t size = end - begin;
    const auto tokens = [&](const at::Tensor& t) { return t.narrow(0, i, 1).narrow(2, begin, size); };
    const Qkv alone = {tokens(in.q), tokens(in.k), tokens(in.v)};
    const AttentionOptions plain = {.kv_of_head = c.kv_of_head, .window = 20};
    const AttentionResult expected = attention(alone, plain);
    const at::Tensor d_tokens = d_out.narrow(1, i, 1).narrow(0, begin, size);
    const Qkv expected_grads = attention_backward(d_tokens, alone, expected, plain);
    EXPECT_TRUE(same_bits(got.out.narrow(1, i, 1).narrow(0, begin, size), expected.out));
    EXPECT_TRUE(same_bits(tokens(grads.q), expected_grads.q));
    EXPECT_TRUE(same_bits(tokens(grads.k), expected_grads.k));
    EXPECT_TRUE(same_bits(tokens(grads.v), expected_grads.v));
    for (const at::Tensor& t : {grads.q, grads.k, grads.v}) {
      EXPECT_EQ(t.select(0, i).narrow(1, 0, begin).abs().sum().item<double>(), 0);
      EXPECT_EQ(t.select(0, i).narrow(1, end, 70 - end).abs().sum().item<double>(), 0);
    }
    EXPECT_EQ(got.out.select(1, i).narrow(0, 0, begin).abs().sum().item<double>(), 0);
    EXPECT_EQ(got.out.select(1, i).narrow(0, end, 70 - end).abs().sum().item<double>(), 0);
  }
}

TEST(AttentionDropout, MatchesFp64ReferenceWithExplicitMask) {
  const Threads threads(1);
  for (const int64_t s : {1, 5, 33, 64, 130}) {
    const Case c = {2, s, 6, 2, {0, 1, 1}};
    for (const std::optional<int64_t>& window : {std::optional<int64_t>(), std::optional<int64_t>(40)}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << dtype << " s " << s << " window " << window.value_or(0));
        AttentionOptions options = {.kv_of_head = c.kv_of_head, .window = window};
        options.dropout = dropout_of(0.3, 2, 9);
        if (s > 1) check_case(c, dtype, options);
        options.valid = {{s / 3, s}, {0, s / 2}};
        if (s > 4) check_case(c, dtype, options);
      }
    }
  }
}

TEST(AttentionDropout, WorksWithoutACausalMask) {
  const Case c = {2, 70, 6, 2, {0, 1, 1}};
  check_case(c, at::kDouble, {.kv_of_head = c.kv_of_head, .causal = false, .dropout = dropout_of(0.5, 0, 3)});
}

// Heads sharded into two ranges are bitwise equal to the unsharded heads with dropout, for any number of
// threads.
TEST(AttentionDropout, MaskDoesNotDependOnHeadSharding) {
  const Case unsharded = {2, 130, 8, 3, {0, 0, 1, 1, 2, 2}};
  const Qkv in = inputs(unsharded, at::kFloat);
  const at::Tensor d_out = random_tensor({130, 2, 48}, 4, at::kFloat);
  const auto run = [&](int64_t first, int64_t count, int64_t first_kv, int64_t kv_heads,
                       std::vector<int64_t> kv_of_head) {
    const AttentionOptions options = {.kv_of_head = std::move(kv_of_head),
                                      .dropout = dropout_of(0.2, first, 6)};
    const Qkv local = {in.q.narrow(1, first, count), in.k.narrow(1, first_kv, kv_heads),
                       in.v.narrow(1, first_kv, kv_heads)};
    const AttentionResult result = attention(local, options);
    const Qkv grads = attention_backward(d_out.narrow(2, first * 8, count * 8), local, result, options);
    return std::pair(result.out, grads.q);
  };
  const auto [out, dq] = run(0, 6, 0, 3, unsharded.kv_of_head);
  const auto [out1, dq1] = run(0, 3, 0, 2, {0, 0, 1});
  const auto [out2, dq2] = run(3, 3, 1, 2, {0, 1, 1});
  EXPECT_TRUE(same_bits(at::cat({out1, out2}, 2), out));
  EXPECT_TRUE(same_bits(at::cat({dq1, dq2}, 1), dq));
  const Threads threads(3);
  const auto [out3, dq3] = run(0, 6, 0, 3, unsharded.kv_of_head);
  EXPECT_TRUE(same_bits(out3, out));
  EXPECT_TRUE(same_bits(dq3, dq));
}

void expect_gradients_of_differences(const Case& c, const AttentionOptions& options) {
  const Qkv in = inputs(c, at::kDouble);
  const at::Tensor d_out = random_tensor({c.s, c.b, c.heads() * c.d}, 5);
  const auto loss = [&](const Qkv& at) { return testing::dot(attention(at, options).out, d_out); };
  const Qkv grads = attention_backward(d_out, in, attention(in, options), options);
  expect_gradient([&](const at::Tensor& q) { return loss({q, in.k, in.v}); }, in.q, grads.q);
  expect_gradient([&](const at::Tensor& k) { return loss({in.q, k, in.v}); }, in.k, grads.k);
  expect_gradient([&](const at::Tensor& v) { return loss({in.q, in.k, v}); }, in.v, grads.v);
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  const Case c = {2, 7, 4, 2, {0, 1, 1}};
  expect_gradients_of_differences(c, causal_of(c));
  expect_gradients_of_differences(
      c,
      {.kv_of_head = c.kv_of_head, .window = 3, .valid = {{1, 7}, {0, 5}}, .dropout = dropout_of(0.4, 1, 4)});
}

TEST(Attention, KvHeadWithoutQueriesGetsZeroGradient) {
  const Case c = {1, 6, 2, 3, {0, 2}};
  const Qkv in = inputs(c, at::kFloat);
  const AttentionResult result = attention(in, causal_of(c));
  const Qkv grads = attention_backward(result.out, in, result, causal_of(c));
  EXPECT_EQ(grads.k.select(1, 1).abs().sum().item<double>(), 0);
  EXPECT_EQ(grads.v.select(1, 1).abs().sum().item<double>(), 0);
}

TEST(Attention, AcceptsZeroHeadsAndZeroRows) {
  check_zero_heads_and_rows(kKernel);
}

TEST(Attention, RejectsMismatchedInputs) {
  const at::Tensor q = at::zeros({1, 2, 3, 4}), k = at::zeros({1, 1, 3, 4});
  EXPECT_THROW(attention({q, k, k}, {.kv_of_head = {0}}), c10::ValueError);
  EXPECT_THROW(attention({q, k, k}, {.kv_of_head = {0, 1}}), c10::ValueError);
  EXPECT_THROW(attention({q, q, q}, {.kv_of_head = {1, 0}}), c10::ValueError);
  EXPECT_THROW(attention({q, k, at::zeros({1, 1, 3, 5})}, {.kv_of_head = {0, 0}}), c10::ValueError);
  const auto refuses = [&](AttentionOptions options) {
    options.kv_of_head = {0, 0};
    EXPECT_THROW(attention({q, k, k}, options), c10::ValueError);
  };
  refuses({.window = 0});
  refuses({.causal = false, .window = 2});
  refuses({.valid = {{0, 3}, {0, 3}}});
  refuses({.valid = {{2, 1}}});
  refuses({.valid = {{0, 4}}});
  refuses({.dropout = dropout_of(1, 0, 2)});
  refuses({.dropout = dropout_of(-0.1, 0, 2)});
  refuses({.dropout = dropout_of(0.1, 1, 2)});
}

}  // namespace
}  // namespace shardwise::kernels::attention_test
