// A row-parallel product's sum, added to the stream and normed in one pass: the bits and the messages of the
// three one by one.
#include "shardwise/parallel/add_norm.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/rms_norm.h"
#include "tests/parallel/linear_case.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::add_norm_test {
namespace {

using at::Tensor;
using comm::Counters;
using comm::Group;
using comm::Op;
using testing::random_tensor;
using testing::same_bits;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;

constexpr double kEps = 1e-5;

/// A stream of [s, 1, h] and what is to be added to it.
struct Case {
  Step step;
  int64_t h;
  bool has_bias;
  at::ScalarType dtype;

  Tensor whole_x() const { return random_tensor({step.sequence.size(), 1, h}, 1, dtype); }
  template <class Stream>
  Placed<Stream> x() const {
    if constexpr (std::is_same_v<Stream, Invariant>) return Placed<Stream>(whole_x());
    return Placed<Stream>(slice_of(whole_x(), step.sequence, 0, step.group.rank()));
  }
  /// A term of its own for every rank, where a product would have put it.
  RowTerms terms() const {
    const Group& group = step.group;
    Tensor y = group.empty({step.sequence.size(), 1, h}, dtype);
    y.copy_(random_tensor({step.sequence.size(), 1, h}, uint64_t(100 + group.rank()), dtype));
    if (!has_bias) return {Placed<Partial>(y), nullptr};
    const ParameterPtr bias =
        make_parameter("bias", {h}, base::ShardRule::replicated(), Init::constant(0), group, dtype);
    bias->value.copy_(random_tensor({h}, 2, dtype));
    return {Placed<Partial>(y), bias};
  }
  RmsNorm norm() const { return {random_tensor({h}, 3, dtype), kEps}; }
};

template <ResidualStream Stream>
Normed<Stream> one_by_one(const Case& c) {
  const Placed<Stream> sum = c.x<Stream>() + sum_terms<Stream>(c.terms(), c.step);
  return {sum, Placed<Stream>(kernels::rms_norm(sum.local(), c.norm().weight, kEps))};
}

struct Spent {
  Counters before;
  Group group;
  explicit Spent(const Group& counted) : before(counted.counters()), group(counted) {}
  Counters operator()() const { return group.counters() - before; }
};

template <ResidualStream Stream>
void check(const Case& c) {
  const Spent separately(c.step.group);
  const Normed<Stream> expected = one_by_one<Stream>(c);
  const Counters sum = separately();
  const Spent at_once(c.step.group);
  const Normed<Stream> got = add_rms_norm(c.x<Stream>(), c.terms(), c.norm(), c.step);
  const Counters fused = at_once();
  EXPECT_TRUE(same_bits(got.x.local(), expected.x.local())) << c.dtype << " " << c.h;
  EXPECT_TRUE(same_bits(got.norm.local(), expected.norm.local())) << c.dtype << " " << c.h;
  EXPECT_EQ(fused.total().calls, sum.total().calls);
  EXPECT_EQ(fused.total().bytes, sum.total().bytes);
  const Op op = std::is_same_v<Stream, Invariant> ? Op::all_reduce : Op::reduce_scatter;
  EXPECT_EQ(fused[op], fused.total());
}

void check_both(const Case& c) {
  check<Invariant>(c);
  check<SequenceShard>(c);
}

void for_each_group(const std::function<void(const Group&)>& body) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& ranks_group) {
      const at::NoGradGuard no_grad;
      for (const Group& group : {ranks_group, ranks_group.without_symmetric_heap()}) body(group);
    });
  }
}

TEST(AddRmsNorm, HasTheBitsAndMessagesOfItsPartsOneByOne) {
  for_each_group([](const Group& group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const int64_t rows : {1, 2, 7, 33}) {
        for (const int64_t h : {5, 64, 515}) {
          for (const bool has_bias : {false, true}) check_both({Step(group, rows), h, has_bias, dtype});
        }
      }
    }
  });
}

// Above the size up to which every rank reads all.
TEST(AddRmsNorm, OfAMessageThatRanksShareOut) {
  for_each_group([](const Group& group) {
    const int64_t rows = 37, h = kOneShotBytes / 2 / rows + 1;
    check_both({Step(group, rows), h, /*has_bias=*/true, at::kBFloat16});
  });
}

TEST(AddRmsNorm, CopiesNothingOnSharedMemory) {
  testing::on_ranks(3, [](const Group& group) {
    const at::NoGradGuard no_grad;
    const Case c{Step(group, 3), 515, /*has_bias=*/true, at::kFloat};
    const Spent spent(group);
    add_rms_norm(c.x<Invariant>(), c.terms(), c.norm(), c.step);
    add_rms_norm(c.x<SequenceShard>(), c.terms(), c.norm(), c.step);
    EXPECT_EQ(spent().total().copied_bytes, 0);
  });
}

// The norm of a shard feeds a crossing; that of the whole stream does not.
TEST(AddRmsNorm, WritesShardsWherePeersCanReadThem) {
  testing::on_ranks(2, [](const Group& group) {
    const at::NoGradGuard no_grad;
    const Case c{Step(group, 4), 64, /*has_bias=*/false, at::kFloat};
    const auto is_shared = [&](const Tensor& x) { return group.symmetric_heap()->contains(x); };
    EXPECT_TRUE(is_shared(add_rms_norm(c.x<SequenceShard>(), c.terms(), c.norm(), c.step).norm.local()));
    EXPECT_FALSE(is_shared(add_rms_norm(c.x<Invariant>(), c.terms(), c.norm(), c.step).norm.local()));
  });
}

// The halves of a row product: its terms, and their sum.
TEST(RowTerms, TakenAreTheRowProduct) {
  for_each_case({{7, 10, 5}, {2, 3, 3, /*has_bias=*/false}},
                [](const LinearCase& linear, testing::Path path, const Group& group) {
                  const at::NoGradGuard no_grad;
                  const Step step = step_on(group, path, linear.sequence);
                  const base::Split features = base::Split::even("features", linear.in, group.size());
                  const LinearParameters w = linear.parameters(base::ShardRule::sharded(1, features),
                                                               base::ShardRule::replicated(), group);
                  const Placed<Sharded<kFeature>> x(slice_of(linear.x(), features, -1, group.rank()));
                  const auto compare = [&]<class Stream>(Stream) {
                    EXPECT_TRUE(same_bits(sum_terms<Stream>(row_terms<Stream>(x, w, step), step).local(),
                                          row_product<Stream>(x, w, step).local()));
                  };
                  compare(Invariant());
                  compare(SequenceShard());
                });
}

}  // namespace
}  // namespace shardwise::parallel::add_norm_test
