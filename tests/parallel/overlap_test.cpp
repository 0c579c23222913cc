// Crossings beside their products: what arrives late is waited for, and the bits are those of the crossings
// apart from them.
#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/parallel/row_product.h"
#include "tests/parallel/late_backend.h"
#include "tests/parallel/linear_case.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;
using FeatureShard = Sharded<kFeature>;

/// Result, input's gradient and weight's, of a column and of a row under TP+SP and of a column under TP.
std::vector<Tensor> results(const Group& group, Overlap overlap, Gathered gathered) {
  Step step(group, /*sequence_length=*/7);
  step.overlap = overlap;
  step.gathered = gathered;
  const LinearCase up{7, 6, 10}, down{7, 10, 6};
  const Split features = Split::even("features", 10, group.size());
  const auto rows = [&](const Tensor& x) { return slice_of(x, step.sequence, 0, group.rank()).clone(); };
  const auto columns = [&](const Tensor& x) { return slice_of(x, features, -1, group.rank()).clone(); };

  const auto w1 = up.parameters(ShardRule::cut(0, features), ShardRule::cut(0, features), group);
  const Tensor x1 = rows(up.x()).requires_grad_();
  const Tensor y1 = column_product(Placed<SequenceShard>(x1), w1, step).local();
  y1.backward(columns(up.dy()));

  const auto w2 = down.parameters(ShardRule::cut(1, features), ShardRule::replicated(), group);
  const Tensor x2 = columns(down.x()).requires_grad_();
  const Tensor y2 = row_product<SequenceShard>(Placed<FeatureShard>(x2), w2, step).local();
  y2.backward(rows(down.dy()));

  const auto w3 = up.parameters(ShardRule::cut(0, features), ShardRule::cut(0, features), group);
  const Tensor x3 = up.x().clone().requires_grad_();
  const Tensor y3 = column_product(Placed<Invariant>(x3), w3, step).local();
  y3.backward(columns(up.dy()));
  return {y1.detach(), x1.grad(), w1.weight->main_grad, y2.detach(), x2.grad(), w2.weight->main_grad,
          y3.detach(), x3.grad(), w3.weight->main_grad};
}

TEST(Overlap, WaitsForWhatArrivesLate) {
  for (const int ranks : {2, 3, 4}) {
    const std::string job = testing::new_job();
    testing::on_ranks(ranks, [&](const Group& group) {
      const auto expected = results(group, Overlap::off, Gathered::again);
      const Group late = testing::late_group(job, group.rank(), ranks);
      for (const Gathered gathered : {Gathered::keep, Gathered::again}) {
        for (const Overlap overlap : {Overlap::on, Overlap::off}) {
          const auto actual = results(late, overlap, gathered);
          for (size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(testing::same_bits(actual[i], expected[i])) << ranks << " ranks, tensor " << i;
        }
      }
    });
  }
}

// A rank whose peers fail does not wait for their rows for ever, and may drop what is under way.
TEST(Overlap, ARankThatIsGoneIsAnError) {
  testing::on_threads(3, [](int rank, const std::string& job) {
    const comm::shm::Options meeting = testing::options(job, rank, 3);
    const Group group = comm::shm::connect(meeting);
    if (rank == 2) return group.abort("gone on purpose");
    EXPECT_THROW(results(group, Overlap::on, Gathered::again), base::CommError);
  });
}

}  // namespace
}  // namespace shardwise::parallel
