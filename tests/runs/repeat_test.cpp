// Training is bitwise reproducible, independent of the ranks' timing.
#include <random>
#include <thread>

#include "tests/support/extent.h"
#include "tests/train/runs.h"

namespace shardwise::testing::repeat_test {
namespace {

struct Outcome {
  std::vector<double> losses, norms;
  std::string weights, moments;  // the checkpoint's bytes
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(train::TrainOptions options, const Scratch& scratch, const AfterStep& after_step = {}) {
  options.save = scratch / "saved";
  const TestRun run = run_job(options, after_step);
  Outcome outcome{run.losses(),
                  {},
                  test::contents(*run.summary.saved / "model.safetensors"),
                  test::contents(*run.summary.saved / "optimizer.safetensors")};
  EXPECT_FALSE(outcome.weights.empty() || outcome.moments.empty());
  for (const train::StepRecord& record : run.records) outcome.norms.push_back(record.grad_norm);
  return outcome;
}

// Delays each rank independently, after half of its steps on average.
class Delays {
 public:
  explicit Delays(int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) random_.emplace_back(rank);
  }
  void operator()(int rank) {
    const auto drawn = random_[static_cast<size_t>(rank)]();
    if (drawn % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn % 2000));
  }

 private:
  std::vector<std::mt19937> random_;
};

TEST(Repeat, EqualRunsAreBitEqual) {
  const int64_t steps = is_full() ? 1000 : 20;
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const int64_t tp : {1, 2, 3, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        const Scratch first, second, third;
        train::TrainOptions options = small_options(first);
        options.steps = steps;
        options.dropout = 0.1;
        options.dtype = dtype;
        options.tp = tp;
        options.sequence_parallel = sequence_parallel;
        const Outcome once = outcome_of(options, first), again = outcome_of(options, second, Delays(tp));
        ASSERT_EQ(once.losses.size(), static_cast<size_t>(steps));
        EXPECT_LT(once.losses.back(), once.losses.front()) << "nothing was learned";
        EXPECT_TRUE(once == again) << dtype << " on " << tp << (sequence_parallel ? " with" : " without")
                                   << " sequence parallelism";
        options.seed = 1;
        EXPECT_FALSE(once == outcome_of(options, third)) << "the seed changes nothing";
      }
    }
  }
  std::printf("covered: 16 runs of %ld steps, each twice\n", static_cast<long>(steps));
}

}  // namespace
}  // namespace shardwise::testing::repeat_test
