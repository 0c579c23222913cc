// A linear layer, unsharded and sharded over the ranks, for the tests of both fused products.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "shardwise/kernels/product.h"
#include "shardwise/parallel/column_product.h"
#include "tests/support/cases.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace shardwise::parallel {

/// y = x Wᵀ + b, of random values that are equal on every rank.
struct LinearCase {
  int64_t sequence, in, out;
  bool has_bias = true;
  at::ScalarType dtype = at::kDouble;
  static constexpr int64_t kBatch = 2;

  at::Tensor x() const { return testing::random_tensor({sequence, kBatch, in}, 1, dtype); }
  at::Tensor dy() const { return testing::random_tensor({sequence, kBatch, out}, 2, dtype); }
  at::Tensor weight() const { return testing::random_tensor({out, in}, 3, dtype); }
  at::Tensor bias() const { return testing::random_tensor({out}, 4, dtype); }

  /// This rank's shards. Every main_grad starts at 1, to check that gradients are added.
  LinearParameters parameters(const base::ShardRule& weight_rule, const base::ShardRule& bias_rule,
                              const comm::Group& group) const {
    LinearParameters w{make("weight", weight(), weight_rule, group), nullptr};
    if (has_bias) w.bias = make("bias", bias(), bias_rule, group);
    return w;
  }

 private:
  ParameterPtr make(const std::string& name, const at::Tensor& full, const base::ShardRule& rule,
                    const comm::Group& group) const {
    const ParameterPtr parameter =
        make_parameter(name, full.sizes().vec(), rule, Init::constant(0), group, dtype);
    const at::NoGradGuard no_grad;
    parameter->value.copy_(testing::slice_of(full, rule, group.rank()));
    zero_grad_(*parameter);
    parameter->main_grad.fill_(1);
    return parameter;
  }
};

/// [s, b, n] as [s·b, n].
inline at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({x.size(0) * x.size(1), x.size(2)});
}

/// a·b by the kernel that the fused products use, which must return the same bits.
inline at::Tensor local_product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor y = at::empty({a.size(0), b.size(1)}, a.options());
  kernels::product_out(y, a, b);
  return y;
}

/// The gradient that was added to a parameter's main_grad.
inline at::Tensor added(const ParameterPtr& parameter) {
  return parameter->main_grad - 1;
}

inline Step step_on(const comm::Group& group, testing::Path path, int64_t sequence) {
  return testing::make_step(group, path, sequence, kernels::RandomKey::of(0), /*dropout=*/0);
}

/// Features and sequence lengths that are divisible by the ranks, not divisible, and fewer than the ranks.
inline std::vector<LinearCase> column_cases() {
  return {{12, 5, 24}, {7, 5, 10}, {2, 3, 3}, {1, 4, 7, /*has_bias=*/false}};
}

inline void for_each_case(
    const std::vector<LinearCase>& cases,
    const std::function<void(const LinearCase&, testing::Path, const comm::Group&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const comm::Group& group) {
      for (const LinearCase& each : cases) {
        for (const testing::Path path : testing::kPaths) check(each, path, group);
      }
    });
  }
}

/// The bytes that a rank sends for one collective over `rows` of `row_bytes` (docs/algorithms.md).
struct Bytes {
  const comm::Group& group;
  int64_t rows, row_bytes, element_bytes = 8;

  int64_t local() const {
    return base::Split::even("rows", rows, group.size()).range(group.rank()).size() * row_bytes;
  }
  int64_t all_gather() const { return local() * (group.size() - 1); }
  int64_t reduce_scatter() const { return rows * row_bytes - local(); }
  int64_t all_reduce() const {
    const int64_t elements = rows * row_bytes / element_bytes;
    const int64_t slice =
        base::Split::even("message", elements, group.size()).range(group.rank()).size() * element_bytes;
    return slice * (group.size() - 1) + elements * element_bytes - slice;
  }
};

}  // namespace shardwise::parallel
