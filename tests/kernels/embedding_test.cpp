#include "shardwise/kernels/embedding.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "tests/kernels/support.h"

namespace shardwise::kernels::embedding_test {
namespace {

at::Tensor ids_of(int64_t s, int64_t b, int64_t vocab) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < s * b; ++i) ids.push_back(i * i * 5 % vocab);
  return at::tensor(ids, at::kLong).view({s, b});
}

TEST(Embedding, SumOverShardsEqualsTheLookup) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t h : {1, 17, 33, 101}) {
      const at::Tensor table = random_tensor({23, h}, 1, dtype), ids = ids_of(5, 3, 23);
      at::Tensor sum = at::zeros({5, 3, h}, dtype);
      for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{0, 9}, {9, 0}, {9, 14}}) {
        at::Tensor y = at::ones({5, 3, h}, dtype);
        kernels::embedding_out(y, ids, table.narrow(0, begin, size), begin);
        sum += y;
      }
      EXPECT_TRUE(same_bits(sum, table.index_select(0, ids.flatten()).view({5, 3, h})));
    }
  }
}

TEST(Embedding, BackwardAddsEachPositionToItsRow) {
  for (const at::ScalarType dtype : kDtypes) {
    const at::ScalarType accumulator = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor ids = ids_of(40, 3, 23), dy = random_tensor({40, 3, 33}, 2, dtype);
    const at::Tensor start = random_tensor({23, 33}, 3, accumulator);
    const at::Tensor expected = wide(start).index_add(0, ids.flatten(), wide(dy).view({120, 33}));
    for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{0, 9}, {9, 14}, {5, 0}}) {
      at::Tensor grad = start.narrow(0, begin, size).clone();
      embedding_backward_(grad, dy, ids, begin);
      EXPECT_LE(relative_error(grad, expected.narrow(0, begin, size)), bound(accumulator, 16));
    }
  }
}

TEST(Embedding, GradientMatchesFiniteDifferences) {
  const at::Tensor table = random_tensor({7, 5}, 4), dy = random_tensor({6, 5}, 5),
                   ids = ids_of(6, 1, 9).flatten();
  at::Tensor grad = at::zeros({7, 5}, at::kDouble);
  embedding_backward_(grad, dy, ids, 1);
  const auto loss = [&](const at::Tensor& t) {
    at::Tensor y = at::empty({6, 5}, at::kDouble);
    kernels::embedding_out(y, ids, t, 1);
    return testing::dot(y, dy);
  };
  expect_gradient(loss, table, grad);
}

TEST(Embedding, IsBitwiseIndependentOfThreadCount) {
  const at::Tensor ids = ids_of(300, 3, 7), dy = random_tensor({300, 3, 257}, 6, at::kFloat);
  std::vector<at::Tensor> grads;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    grads.push_back(at::zeros({7, 257}));
    embedding_backward_(grads.back(), dy, ids, 0);
  }
  EXPECT_TRUE(same_bits(grads[0], grads[1]));
}

TEST(Embedding, RejectsMismatchedInputs) {
  at::Tensor y = at::empty({3, 4}), grad = at::zeros({5, 4});
  const at::Tensor ids = at::zeros({3}, at::kLong);
  EXPECT_THROW(kernels::embedding_out(y, ids, at::zeros({5, 3}), 0), c10::ValueError);
  EXPECT_THROW(kernels::embedding_out(y, ids.to(at::kInt), at::zeros({5, 4}), 0), c10::ValueError);
  EXPECT_THROW(embedding_backward_(grad, at::zeros({2, 4}), ids, 0), c10::ValueError);
  EXPECT_THROW(embedding_backward_(grad, at::zeros({3, 4}, at::kDouble), ids, 0), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::embedding_test
