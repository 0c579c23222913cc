#include "tests/support/tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <random>

namespace shardwise::testing {

at::Tensor random_tensor(const std::vector<int64_t>& shape, uint64_t seed, at::ScalarType dtype) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  at::Tensor drawn = at::empty(shape, at::kDouble);
  std::generate_n(drawn.mutable_data_ptr<double>(), drawn.numel(), [&] { return normal(random); });
  return drawn.to(dtype);
}

at::Tensor slice_of(const at::Tensor& full, const base::Split& split, int64_t dim, int rank) {
  return full.narrow(dim, split.range(rank).begin, split.range(rank).size())
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor slice_of(const at::Tensor& full, const base::ShardRule& rule, int rank) {
  if (rule.is_replicated()) return full.clone();
  std::vector<at::Tensor> pieces;
  for (const auto& piece : rule.pieces(rank))
    pieces.push_back(full.narrow(rule.dim, piece.global_begin, piece.size));
  return at::cat(pieces, rule.dim);
}

double dot(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) * b.detach().to(at::kDouble)).sum().item<double>();
}

}  // namespace shardwise::testing
