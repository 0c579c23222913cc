#include "shardwise/nn/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn {
namespace {

using at::Tensor;
using comm::Group;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;

constexpr int64_t kSequenceLength = 5, kHidden = 6;
constexpr double kEps = 1e-2;  // large, so that a wrong place for it shows

Tensor formula(const Tensor& x, const Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + kEps) * weight;
}

struct Norm {
  RMSNorm norm;
  ParameterPtr weight;

  explicit Norm(const Group& group) : norm("norm", kHidden, kEps, group, at::kDouble) {
    Roles roles;
    norm.append_roles(roles);
    weight = roles.at(0).parameter;
    const at::NoGradGuard no_grad;
    weight->value.copy_(random_tensor({kHidden}, 1));
    parallel::zero_grad_(*weight);
  }
};

Tensor whole(uint64_t seed) {
  return random_tensor({kSequenceLength, 2, kHidden}, seed);
}

// The rows that a rank holds, forward and backward, against the formula on the same rows.
template <ResidualStream Stream>
void check(const Group& group, const Tensor& rows, const Tensor& dy) {
  const Norm own(group);
  const Tensor x = rows.clone().requires_grad_(), x_expected = rows.clone().requires_grad_();
  const Tensor weight = random_tensor({kHidden}, 1).requires_grad_();
  const comm::Counters before = group.counters();
  const Tensor y = own.norm(Placed<Stream>(x), Step(group, kSequenceLength)).local();
  const Tensor expected = formula(x_expected, weight);
  EXPECT_LE(relative_error(y, expected), 1e-15);
  y.backward(dy);
  expected.backward(dy);
  EXPECT_LE(relative_error(x.grad(), x_expected.grad()), 1e-14);
  EXPECT_LE(relative_error(own.weight->main_grad, weight.grad()), 1e-14);
  EXPECT_EQ((group.counters() - before).total().calls, 0);
  EXPECT_TRUE(testing::same_bits(x.detach(), rows)) << "the input was changed";
}

TEST(RMSNorm, OfTheWholeStream) {
  for (const int ranks : {1, 2}) {
    testing::on_ranks(ranks, [](const Group& group) { check<Invariant>(group, whole(2), whole(3)); });
  }
}

TEST(RMSNorm, OfSequenceShardsIsThatOfTheOwnRows) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& ranks_group) {
      for (const Group& group : {ranks_group, ranks_group.without_symmetric()}) {
        const base::Split sequence = Step(group, kSequenceLength).sequence;
        const int rank = group.rank();
        check<Sharded<kSequence>>(group, slice_of(whole(2), sequence, 0, rank),
                                  slice_of(whole(3), sequence, 0, rank));
      }
    });
  }
}

TEST(RMSNorm, OfNoRowsAtAll) {
  testing::on_ranks(4, [](const Group& group) {
    const Norm own(group);
    const Step step(group, 2);  // two ranks hold no row
    const Tensor x = random_tensor({step.own_sequence().size(), 2, kHidden}, 1).requires_grad_();
    const Tensor y = own.norm(Placed<Sharded<kSequence>>(x), step).local();
    y.backward(y.detach());
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  });
}

// On shared memory the shard feeds a crossing, which reads it where it lies.
TEST(RMSNorm, WritesShardsWherePeersCanReadThem) {
  testing::on_ranks(2, [](const Group& group) {
    const Norm own(group);
    const Tensor x = random_tensor({2, 2, kHidden}, 1);
    const Step step(group, 4);
    EXPECT_TRUE(group.symmetric()->contains(own.norm(Placed<Sharded<kSequence>>(x), step).local()));
    EXPECT_FALSE(group.symmetric()->contains(own.norm(Placed<Invariant>(x), step).local()));
  });
}

TEST(RMSNorm, WithoutGradientsMakesNoNode) {
  const Norm own{Group()};
  const at::NoGradGuard no_grad;
  const Tensor y =
      own.norm(Placed<Invariant>(whole(2).requires_grad_()), Step(Group(), kSequenceLength)).local();
  EXPECT_FALSE(y.requires_grad());
  EXPECT_LE(relative_error(y, formula(whole(2), random_tensor({kHidden}, 1))), 1e-15);
}

}  // namespace
}  // namespace shardwise::nn
