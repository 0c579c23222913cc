#include "shardwise/kernels/attention_by_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>

#include "tests/kernels/attention_reference.h"

namespace shardwise::kernels::attention_test {
namespace {

constexpr Implementation kByProducts = {attention_by_products, attention_backward_by_products};
using Windows = std::vector<std::optional<int64_t>>;

TEST(AttentionByProducts, MatchesFp64ReferenceForEveryGrouping) {
  const Threads threads(1);
  for (const Case& c : kCases) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(::testing::Message()
                     << dtype << " s " << c.s << " kv " << at::IntArrayRef(c.kv_of_head) << causal);
        check_case(c, dtype, {.kv_of_head = c.kv_of_head, .causal = causal}, kByProducts);
      }
    }
  }
}

TEST(AttentionByProducts, MatchesFp64ReferenceWithAWindow) {
  const Threads threads(1);
  for (const int64_t s : {1, 2, 33, 64, 130}) {
    for (const int64_t window : {1, 2, 31, 64, 130, 400}) {
      const Case c = {2, s, 6, 2, {0, 1, 1}};
      for (const at::ScalarType dtype : kDtypes) {
        SCOPED_TRACE(::testing::Message() << dtype << " s " << s << " window " << window);
        check_case(c, dtype, {.kv_of_head = c.kv_of_head, .window = window}, kByProducts);
      }
    }
  }
}

TEST(AttentionByProducts, MatchesFp64ReferenceWithPadding) {
  const Threads threads(1);
  const Case c = {6, 70, 6, 2, {0, 1, 1}};
  for (const at::ScalarType dtype : kDtypes) {
    const AttentionOptions padded = {.kv_of_head = c.kv_of_head, .valid = kPadded};
    AttentionOptions windowed = padded, bidirectional = padded;
    windowed.window = 9;
    bidirectional.causal = false;
    for (const AttentionOptions& options : {padded, windowed, bidirectional}) {
      SCOPED_TRACE(::testing::Message() << dtype << options.causal << options.window.value_or(0));
      check_case(c, dtype, options, kByProducts);
    }
  }
}

// With all heads of the model and with a shard of them; the reference's mask is that of the unsharded model.
TEST(AttentionByProducts, MatchesFp64ReferenceWithDropout) {
  const Threads threads(1);
  for (const int64_t s : {2, 5, 32, 33, 130}) {
    const Case c = {2, s, 6, 2, {0, 1, 1}};
    for (const AttentionDropout& dropout : {dropout_of(0.3, 0, 3), dropout_of(0.3, 2, 9)}) {
      for (const std::optional<int64_t>& window : Windows{{}, 40}) {
        for (const at::ScalarType dtype : kDtypes) {
          SCOPED_TRACE(::testing::Message()
                       << dtype << " s " << s << " of " << dropout.all_heads << " " << window.value_or(0));
          AttentionOptions options = {.kv_of_head = c.kv_of_head, .window = window, .dropout = dropout};
          check_case(c, dtype, options, kByProducts);
          options.valid = {{s / 3, s}, {0, s / 2}};
          if (s > 4) check_case(c, dtype, options, kByProducts);
          options.valid.clear();
          options.causal = window.has_value();
          check_case(c, dtype, options, kByProducts);
        }
      }
    }
  }
}

// With equal scores and the values of an identity matrix, the outputs are the probabilities.
TEST(AttentionByProducts, DropsTheProbabilitiesThatTheKernelDrops) {
  const int64_t s = 45, heads = 3;
  const at::Tensor zeros = at::zeros({2, heads, s, s}, at::kDouble);
  const at::Tensor v = at::eye(s, at::kDouble).expand({2, heads, s, s});
  for (const int64_t all_heads : {3, 8}) {
    for (const std::vector<base::Range>& valid : {std::vector<base::Range>{}, {{7, 45}, {0, 40}}}) {
      AttentionOptions options = {.kv_of_head = {0, 1, 2}, .causal = false, .valid = valid};
      options.dropout = dropout_of(0.4, all_heads - heads, all_heads);
      const at::Tensor got = attention_by_products({zeros, zeros, v}, options).out;
      const at::Tensor expected = attention({zeros, zeros, v}, options).out;
      EXPECT_TRUE(same_bits(got.eq(0), expected.eq(0))) << all_heads;
      const double kept = got.ne(0).sum().item<double>(), rows = valid.empty() ? 2 * s * s : 38 * 38 + 1600;
      EXPECT_NEAR(kept / (3 * rows), 0.6, 0.05);
    }
  }
}

// Queries, keys and values as views of features [s, b, heads·d], and values whose columns are contiguous.
TEST(AttentionByProducts, AgreesWithTheKernelForAnyStrides) {
  const Case c = {2, 37, 8, 2, {0, 0, 1}};
  const AttentionOptions options = {.kv_of_head = c.kv_of_head,
                                    .window = 20,
                                    .valid = {{3, 37}, {0, 30}},
                                    .dropout = dropout_of(0.2, 1, 4)};
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor q = random_tensor({c.s, c.b, 3, c.d}, 1, dtype).permute({1, 2, 0, 3});
    const at::Tensor k = random_tensor({c.s, c.b, 2, c.d}, 2, dtype).permute({1, 2, 0, 3});
    const at::Tensor v = random_tensor({c.b, 2, c.d, c.s}, 3, dtype).transpose(2, 3);
    const at::Tensor d_out = random_tensor({c.b, c.s, 3 * c.d}, 4, dtype).transpose(0, 1);
    const AttentionResult expected = attention({q, k, v}, options);
    const AttentionResult got = attention_by_products({q, k, v}, options);
    const Qkv expected_grads = attention_backward(d_out, {q, k, v}, expected, options);
    const Qkv grads = attention_backward_by_products(d_out, {q, k, v}, got, options);
    const double limit = 2 * attention_bound(dtype);
    EXPECT_LE(relative_error(got.out, expected.out), limit) << dtype;
    EXPECT_LE(relative_error(got.lse, expected.lse), limit) << dtype;
    EXPECT_LE(relative_error(grads.q, expected_grads.q), limit) << dtype;
    EXPECT_LE(relative_error(grads.k, expected_grads.k), limit) << dtype;
    EXPECT_LE(relative_error(grads.v, expected_grads.v), limit) << dtype;
    EXPECT_EQ(got.lse.scalar_type(), expected.lse.scalar_type());
    EXPECT_EQ(grads.k.scalar_type(), dtype);
    EXPECT_EQ(grads.k.strides(), expected_grads.k.strides());
  }
}

TEST(AttentionByProducts, QueriesAreTheLastPositions) {
  const Threads threads(1);
  const Case c = {2, 65, 8, 2, {0, 0, 1}};
  for (const int64_t n : {1, 2, 32, 64}) {
    for (const std::optional<int64_t>& window : Windows{{}, 5}) {
      for (const at::ScalarType dtype : kDtypes) {
        SCOPED_TRACE(::testing::Message() << dtype << " n " << n << " " << window.value_or(0));
        const AttentionOptions options = {.kv_of_head = c.kv_of_head, .window = window};
        const Qkv in = inputs(c, dtype);
        const Reference expected = reference({wide(in.q), wide(in.k), wide(in.v)}, c, options);
        const AttentionResult got = attention_by_products({in.q.narrow(2, c.s - n, n), in.k, in.v}, options);
        EXPECT_LE(relative_error(got.out, expected.out.narrow(0, c.s - n, n)), attention_bound(dtype));
        EXPECT_LE(relative_error(got.lse, expected.lse.narrow(2, c.s - n, n)), attention_bound(dtype));
      }
    }
  }
}

// Scores of about 1250 and −1250, whose powers of e are Inf and 0.
TEST(AttentionByProducts, MatchesFp64ReferenceWhereScoresAreFarFromZero) {
  const Case c = {1, 70, 64, 2, {0, 1, 1}};
  for (const double sign : {1, -1}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      Qkv in = inputs(c, dtype);
      in.q.select(-1, 0).fill_(100);
      in.k.select(-1, 0).fill_(100 * sign);
      const Qkv leaves = {leaf(in.q), leaf(in.k), leaf(in.v)};
      const Reference expected = reference(leaves, c, causal_of(c));
      const at::Tensor d_out = random_tensor({c.s, c.b, c.heads() * c.d}, 4, dtype);
      expected.out.backward(wide(d_out));
      const AttentionResult got = attention_by_products(in, causal_of(c));
      const Qkv grads = attention_backward_by_products(d_out, in, got, causal_of(c));
      const at::ScalarType sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
      const double limit = attention_bound(dtype) + 1250 * 64 * roundoff(sums);  // scores of 64 terms
      EXPECT_LE(relative_error(got.out, expected.out), limit) << dtype;
      EXPECT_LE(relative_error(got.lse, expected.lse), attention_bound(dtype)) << dtype;
      EXPECT_LE(relative_error(grads.v, leaves.v.grad()), limit) << dtype;
    }
  }
}

TEST(AttentionByProducts, NaNOfAKeyReachesTheQueriesThatAttendToIt) {
  const Case c = {1, 70, 8, 1, {0}};
  for (const int64_t key : {0, 40, 69}) {
    Qkv in = inputs(c, at::kFloat);
    in.k.select(2, key).fill_(NAN);
    const at::Tensor is_nan = attention_by_products(in, causal_of(c)).out.isnan().any(-1).flatten();
    EXPECT_FALSE(is_nan.narrow(0, 0, key).any().item<bool>()) << key;
    EXPECT_TRUE(is_nan.narrow(0, key, c.s - key).all().item<bool>()) << key;
  }
}

TEST(AttentionByProducts, PaddingIsNeverRead) {
  const Case c = {6, 70, 6, 2, {0, 1, 1}};
  const AttentionOptions options = {.kv_of_head = c.kv_of_head, .valid = kPadded};
  const Qkv in = inputs(c, at::kFloat);
  const at::Tensor d_out = random_tensor({70, 6, 18}, 4, at::kFloat);
  const auto padding_of = [](const at::Tensor& heads) {  // [b, heads, s, d]
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < 6; ++i) {
      rows.push_back(heads.select(0, i).narrow(1, 0, kPadded[i].begin));
      rows.push_back(heads.select(0, i).narrow(1, kPadded[i].end, 70 - kPadded[i].end));
    }
    return rows;
  };
  const auto heads_of = [](const at::Tensor& x) { return x.unsqueeze(2).permute({1, 2, 0, 3}); };
  for (const at::Tensor& t : {in.q, in.k, in.v, heads_of(d_out)})
    for (const at::Tensor& rows : padding_of(t)) rows.fill_(NAN);
  const AttentionResult got = attention_by_products(in, options);
  const Qkv grads = attention_backward_by_products(d_out, in, got, options);
  for (const at::Tensor& t : {heads_of(got.out), got.lse.unsqueeze(-1), grads.q, grads.k, grads.v}) {
    EXPECT_FALSE(t.isnan().any().item<bool>());
    for (const at::Tensor& rows : padding_of(t)) EXPECT_FALSE(rows.any().item<bool>());
  }
}

TEST(AttentionByProducts, AcceptsZeroHeadsAndZeroRows) {
  check_zero_heads_and_rows(kByProducts);
}

// The meta device refuses operands of other devices and reads of values.
TEST(AttentionByProducts, StaysOnTheDeviceOfItsArguments) {
  const Case c = {2, 9, 8, 2, {0, 0, 1}};
  const auto on_meta = [](const at::Tensor& x) {
    return at::empty(x.sizes(), x.options().device(at::kMeta));
  };
  const Qkv cpu = inputs(c, at::kBFloat16), in = {on_meta(cpu.q), on_meta(cpu.k), on_meta(cpu.v)};
  AttentionOptions plain = causal_of(c), padded = plain;
  plain.window = 4;
  padded.valid = {{1, 9}, {0, 9}};
  for (const AttentionOptions& options : {plain, padded}) {
    const AttentionResult got = attention_by_products(in, options);
    const Qkv grads = attention_backward_by_products(got.out, in, got, options);
    for (const at::Tensor& t : {got.out, got.lse, grads.q, grads.k, grads.v}) EXPECT_TRUE(t.is_meta());
  }
}

TEST(AttentionByProducts, RecordsNoGraph) {
  const Case c = {1, 5, 4, 1, {0, 0}};
  const Qkv in = {leaf(inputs(c, at::kDouble).q), leaf(inputs(c, at::kDouble).k),
                  leaf(inputs(c, at::kDouble).v)};
  const AttentionResult got = attention_by_products(in, causal_of(c));
  EXPECT_FALSE(got.out.requires_grad() || got.lse.requires_grad());
  EXPECT_FALSE(attention_backward_by_products(got.out, in, got, causal_of(c)).k.requires_grad());
}

}  // namespace
}  // namespace shardwise::kernels::attention_test
