// Crossings beside their products: what arrives late is waited for, and the bits are those of the crossings
// apart from them.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <future>

#include "shardwise/base/error.h"
#include "shardwise/parallel/row_product.h"
#include "tests/parallel/late_backend.h"
#include "tests/parallel/linear_case.h"
#include "tests/parallel/recording_backend.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::overlap_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;
using FeatureShard = Sharded<kFeature>;

/// Result, input's gradient and weight's, of a column and of a row under TP+SP and of a column under TP.
std::vector<Tensor> results(const Group& group, Overlap overlap, SaveForBackward save_for_backward) {
  Step step(group, /*sequence_length=*/7);
  step.overlap = overlap;
  step.save_for_backward = save_for_backward;
  const LinearCase up{7, 6, 10}, down{7, 10, 6};
  const Split features = Split::even("features", 10, group.size());
  const auto rows = [&](const Tensor& x) { return slice_of(x, step.sequence, 0, group.rank()).clone(); };
  const auto columns = [&](const Tensor& x) { return slice_of(x, features, -1, group.rank()).clone(); };

  const auto w1 = up.parameters(ShardRule::sharded(0, features), ShardRule::sharded(0, features), group);
  const Tensor x1 = rows(up.x()).requires_grad_();
  const Tensor y1 = column_product(Placed<SequenceShard>(x1), w1, step).local();
  y1.backward(columns(up.dy()));

  const auto w2 = down.parameters(ShardRule::sharded(1, features), ShardRule::replicated(), group);
  const Tensor x2 = columns(down.x()).requires_grad_();
  const Tensor y2 = row_product<SequenceShard>(Placed<FeatureShard>(x2), w2, step).local();
  y2.backward(rows(down.dy()));

  const auto w3 = up.parameters(ShardRule::sharded(0, features), ShardRule::sharded(0, features), group);
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
      const auto expected = results(group, Overlap::off, SaveForBackward::shard);
      const Group late = testing::late_group(job, group.rank(), ranks);
      for (const SaveForBackward save_for_backward : {SaveForBackward::gathered, SaveForBackward::shard}) {
        for (const Overlap overlap : {Overlap::on, Overlap::off}) {
          const auto actual = results(late, overlap, save_for_backward);
          for (size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(testing::same_bits(actual[i], expected[i])) << ranks << " ranks, tensor " << i;
        }
      }
    });
  }
}

/// "product" as each of this thread's matrix products begins, for as long as this lives.
class ProductsTold {
 public:
  explicit ProductsTold(std::function<void()> tell) : tell_(std::move(tell)) {
    current_ = this;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&begins).scopes({at::RecordScope::FUNCTION}));
  }
  ~ProductsTold() { at::removeCallback(handle_); }

 private:
  static std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    if (name == "aten::mm" || name == "aten::addmm_") current_->tell_();
    return nullptr;
  }

  static inline thread_local ProductsTold* current_ = nullptr;
  std::function<void()> tell_;
  at::CallbackHandle handle_;
};

/// What rank 0 of two does in forward and in backward, each word one event.
struct Events {
  std::string forward, backward;
};

Events events_of(const std::function<Tensor(const Step&)>& forward, Overlap overlap) {
  Events events;
  testing::on_threads(2, [&](int rank, const std::string& job) {
    std::string told;
    const auto tell = [&](const std::string& what) { told += (told.empty() ? "" : " ") + what; };
    const Group group = testing::recording_group(
        job, rank, 2, [&](const char* op, int, bool begins) { tell(begins ? op : std::string("/") + op); });
    const ProductsTold products([&] { tell("product"); });
    Step step(group, /*sequence_length=*/7);
    step.overlap = overlap;
    step.save_for_backward = SaveForBackward::shard;
    const Tensor y = forward(step);
    const std::string first = std::exchange(told, "");
    y.backward(at::ones_like(y));
    if (rank == 0) events = {first, told};
  });
  return events;
}

const Split& features_of_two() {
  static const Split split = Split::even("features", 10, 2);
  return split;
}

template <class X>
Tensor column(const Step& step) {
  const LinearCase up{7, 6, 10, /*has_bias=*/false};
  const ShardRule rule = ShardRule::sharded(0, features_of_two());
  const bool is_whole = std::is_same_v<X, Invariant>;
  const Tensor x = is_whole ? up.x() : slice_of(up.x(), step.sequence, 0, step.group.rank());
  const auto w = up.parameters(rule, rule, step.group);
  return column_product(Placed<X>(x.clone().requires_grad_()), w, step).local();
}

Tensor row(const Step& step) {
  const LinearCase down{7, 10, 6, /*has_bias=*/false};
  const Tensor x = slice_of(down.x(), features_of_two(), -1, step.group.rank());
  const auto w =
      down.parameters(ShardRule::sharded(1, features_of_two()), ShardRule::replicated(), step.group);
  return row_product<SequenceShard>(Placed<FeatureShard>(x.clone().requires_grad_()), w, step).local();
}

// dX's sum beside dW.
TEST(Overlap, OfAColumnUnderTp) {
  const Events on = events_of(column<Invariant>, Overlap::on),
               off = events_of(column<Invariant>, Overlap::off);
  EXPECT_EQ(on.forward, "product");
  EXPECT_EQ(on.backward, "product sum product /sum");
  EXPECT_EQ(off.forward, "product");
  EXPECT_EQ(off.backward, "product product sum /sum");
}

// Forward: the own rows while the peer's come. Backward: X's rows come, and dX's parts go, beside both
// products.
TEST(Overlap, OfAColumnUnderTpAndSp) {
  const Events on = events_of(column<SequenceShard>, Overlap::on),
               off = events_of(column<SequenceShard>, Overlap::off);
  EXPECT_EQ(on.forward, "broadcast broadcast product /broadcast /broadcast product");
  EXPECT_EQ(on.backward,
            "broadcast broadcast product gather product gather product /broadcast /broadcast product /gather "
            "/gather");
  EXPECT_EQ(off.forward, "product product");
  EXPECT_EQ(off.backward, "product product product product gather gather /gather /gather");
}

// Forward: each rank's rows go when they are made. Backward: dY's rows come beside both products of the own.
TEST(Overlap, OfARowUnderTpAndSp) {
  const Events on = events_of(row, Overlap::on), off = events_of(row, Overlap::off);
  EXPECT_EQ(on.forward, "product gather product gather /gather /gather");
  EXPECT_EQ(on.backward, "broadcast broadcast product product /broadcast /broadcast product product");
  EXPECT_EQ(off.forward, "product product gather gather /gather /gather");
  EXPECT_EQ(off.backward, "product product product product");
}

// On shared memory the own shard's product does not wait for a peer's shard: this peer brings its own when
// that product has begun.
TEST(Overlap, OfSharedMemoryBeginsWithTheOwnShard) {
  std::promise<void> has_begun;
  testing::on_threads(2, [&](int rank, const std::string& job) {
    const Group group = comm::shm::connect(testing::options(job, rank, 2));
    const Step step(group, /*sequence_length=*/7);
    bool is_first = rank == 0;
    const ProductsTold products([&] {
      if (std::exchange(is_first, false)) has_begun.set_value();
    });
    if (rank == 1) {
      EXPECT_EQ(has_begun.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    }
    column<SequenceShard>(step);
  });
}

// A rank whose peers fail does not wait for their rows for ever, and may drop what is under way.
TEST(Overlap, ARankThatIsGoneIsAnError) {
  testing::on_threads(3, [](int rank, const std::string& job) {
    const comm::shm::Options meeting = testing::options(job, rank, 3);
    const Group group = comm::shm::connect(meeting);
    if (rank == 2) return group.abort("gone on purpose");
    EXPECT_THROW(results(group, Overlap::on, SaveForBackward::shard), base::CommError);
  });
}

}  // namespace
}  // namespace shardwise::parallel::overlap_test
