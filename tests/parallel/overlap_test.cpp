// Collectives overlapped with products: the order of launches and waits, and the bits of Overlap::off.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <future>

#include "shardwise/base/error.h"
#include "shardwise/base/weight_gradient_rows.h"
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

/// Returns output, input gradient and weight gradient of a column and a row product under TP+SP and of a
/// column product under TP.
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

TEST(Overlap, AsynchronousBackendGivesTheBitsOfOverlapOff) {
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

/// Calls `record` at the start of each matrix product of this thread, during this object's lifetime.
class ProductRecorder {
 public:
  explicit ProductRecorder(std::function<void()> record) : record_(std::move(record)) {
    current_ = this;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&begins).scopes({at::RecordScope::FUNCTION}));
  }
  ~ProductRecorder() { at::removeCallback(handle_); }

 private:
  static std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    if (name == "aten::mm" || name == "aten::addmm_") current_->record_();
    return nullptr;
  }

  static inline thread_local ProductRecorder* current_ = nullptr;
  std::function<void()> record_;
  at::CallbackHandle handle_;
};

/// Lengths at which each of two ranks has enough rows for a product of its own for dW, and at which it has
/// not.
constexpr int64_t kLong = base::kWeightGradientRows + 1, kShort = 7;

/// The events of one of two ranks in forward and in backward: products, launches of collectives, and waits
/// ("/op").
struct Events {
  std::string forward, backward;
};

Events events_of(const std::function<Tensor(const Step&)>& forward, Overlap overlap, int64_t length = kLong,
                 int of_rank = 0) {
  Events events;
  testing::on_threads(2, [&](int rank, const std::string& job) {
    std::string recorded;
    const auto record = [&](const std::string& what) { recorded += (recorded.empty() ? "" : " ") + what; };
    const Group group = testing::recording_group(
        job, rank, 2, [&](const char* op, int, bool begins) { record(begins ? op : std::string("/") + op); });
    const ProductRecorder products([&] { record("product"); });
    Step step(group, length);
    step.overlap = overlap;
    step.save_for_backward = SaveForBackward::shard;
    const Tensor y = forward(step);
    const std::string forward_events = std::exchange(recorded, "");
    y.backward(at::ones_like(y));
    if (rank == of_rank) events = {forward_events, recorded};
  });
  return events;
}

const Split& features_of_two() {
  static const Split split = Split::even("features", 10, 2);
  return split;
}

template <class X>
Tensor column(const Step& step) {
  const LinearCase up{step.sequence.size(), 6, 10, /*has_bias=*/false};
  const ShardRule rule = ShardRule::sharded(0, features_of_two());
  const bool is_full = std::is_same_v<X, Invariant>;
  const Tensor x = is_full ? up.x() : slice_of(up.x(), step.sequence, 0, step.group.rank());
  const auto w = up.parameters(rule, rule, step.group);
  return column_product(Placed<X>(x.clone().requires_grad_()), w, step).local();
}

Tensor row(const Step& step) {
  const LinearCase down{step.sequence.size(), 10, 6, /*has_bias=*/false};
  const Tensor x = slice_of(down.x(), features_of_two(), -1, step.group.rank());
  const auto w =
      down.parameters(ShardRule::sharded(1, features_of_two()), ShardRule::replicated(), step.group);
  return row_product<SequenceShard>(Placed<FeatureShard>(x.clone().requires_grad_()), w, step).local();
}

// The all_reduce of dX overlaps with the product for dW.
TEST(Overlap, ColumnProductUnderTpReducesDxDuringDw) {
  const Events on = events_of(column<Invariant>, Overlap::on),
               off = events_of(column<Invariant>, Overlap::off);
  EXPECT_EQ(on.forward, "product");
  EXPECT_EQ(on.backward, "product all_reduce product /all_reduce");
  EXPECT_EQ(off.forward, "product");
  EXPECT_EQ(off.backward, "product product all_reduce /all_reduce");
}

// Forward: the local rows are multiplied while the peer's arrive. Backward: X's rows arrive during the
// products for dX, whose rows are sent as soon as they are computed.
TEST(Overlap, ColumnProductUnderSpGathersAndScattersDuringProducts) {
  const Events on = events_of(column<SequenceShard>, Overlap::on),
               off = events_of(column<SequenceShard>, Overlap::off);
  EXPECT_EQ(on.forward, "broadcast broadcast product /broadcast /broadcast product");
  EXPECT_EQ(on.backward,
            "broadcast broadcast product gather product gather product /broadcast /broadcast product /gather "
            "/gather");
  EXPECT_EQ(off.forward, "product product");
  EXPECT_EQ(off.backward, "product product product product gather gather /gather /gather");
}

// Forward: each rank's rows are sent as soon as they are computed. Backward: the peer's rows of dY arrive
// during both products with the local rows.
TEST(Overlap, RowProductUnderSpScattersAndGathersDuringProducts) {
  const Events on = events_of(row, Overlap::on), off = events_of(row, Overlap::off);
  EXPECT_EQ(on.forward, "product gather product gather /gather /gather");
  EXPECT_EQ(on.backward, "broadcast broadcast product product /broadcast /broadcast product product");
  EXPECT_EQ(off.forward, "product product gather gather /gather /gather");
  EXPECT_EQ(off.backward, "product product product product");
}

// Few rows of several ranks are multiplied together for dW, once they have arrived.
TEST(Overlap, FewRowsAreMultipliedTogetherForDw) {
  for (const Overlap overlap : {Overlap::on, Overlap::off}) {
    const auto products_in_backward = [&](const auto& forward, int64_t length) {
      const std::string events = events_of(forward, overlap, length).backward;
      int products = 0;
      for (size_t at = events.find("product"); at != std::string::npos; at = events.find("product", at + 1))
        ++products;
      return products;
    };
    EXPECT_EQ(products_in_backward(column<SequenceShard>, kLong), 4) << "dX and dW for the rows of each rank";
    EXPECT_EQ(products_in_backward(column<SequenceShard>, kShort), 3);
    EXPECT_EQ(products_in_backward(row, kLong), 4);
    EXPECT_EQ(products_in_backward(row, kShort), 3);
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ(events_of(row, Overlap::on, kShort, rank).backward,
              "broadcast broadcast product /broadcast /broadcast product product")
        << "the local rows of dX are computed first, on rank " << rank;
  }
}

// On shared memory the product with the local shard does not wait for the peer's shard: rank 1 shares its
// shard only after that product has started.
TEST(Overlap, SharedMemoryMultipliesTheLocalShardFirst) {
  std::promise<void> has_begun;
  testing::on_threads(2, [&](int rank, const std::string& job) {
    const Group group = comm::shm::connect(testing::options(job, rank, 2));
    const Step step(group, /*sequence_length=*/7);
    bool is_first = rank == 0;
    const ProductRecorder products([&] {
      if (std::exchange(is_first, false)) has_begun.set_value();
    });
    if (rank == 1) {
      EXPECT_EQ(has_begun.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    }
    column<SequenceShard>(step);
  });
}

// A rank whose peer aborts gets an error and may destroy what is in flight.
TEST(Overlap, AbortedPeerIsAnError) {
  testing::on_threads(3, [](int rank, const std::string& job) {
    const comm::shm::ConnectOptions options = testing::options(job, rank, 3);
    const Group group = comm::shm::connect(options);
    if (rank == 2) return group.abort("gone on purpose");
    EXPECT_THROW(results(group, Overlap::on, SaveForBackward::shard), base::CommError);
  });
}

}  // namespace
}  // namespace shardwise::parallel::overlap_test
